{{- define "epd.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "epd.seamSecret" -}}
{{- .Values.seam.existingSecret | default (printf "%s-seam" (include "epd.name" .)) -}}
{{- end -}}

{{- define "epd.apiKeysSecret" -}}
{{- .Values.apiKeys.existingSecret | default (printf "%s-api-keys" (include "epd.name" .)) -}}
{{- end -}}

{{- define "epd.labels" -}}
{{ include "epd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "epd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The pods of one kind, as a peer of a NetworkPolicy. Takes a list: the root, and the component. */}}
{{- define "epd.pods" -}}
podSelector:
  matchLabels:
    {{- include "epd.selector" (index . 0) | nindent 4 }}
    app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}
