{{/*
The pod of either service. Takes a dict: root, component, values (the component's), ports (a list of name and port), and
environment (a dict of what the component's variables are besides those of both).
*/}}
{{- define "epd.pod" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{- $name := include "epd.name" $root -}}
{{- $leave := $values.leaveSeconds | default 0 -}}
metadata:
  labels:
    {{- include "epd.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  # Else a Service named epd would set EPD_PORT.
  enableServiceLinks: false
  # As process 1, Python would ignore SIGTERM until it serves.
  shareProcessNamespace: true
  terminationGracePeriodSeconds: {{ add $leave $values.drainSeconds 10 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    # Whose the mounted secret is.
    fsGroup: 10001
    seccompProfile:
      type: RuntimeDefault
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "epd.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $.component }}
    {{- end }}
  affinity:
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels:
                {{- include "epd.selector" $root | nindent 16 }}
                app.kubernetes.io/component: {{ ternary "language" "encoder" (eq .component "encoder") }}
  dnsConfig:
    options:
      # Names with a dot are asked for as they are, before the cluster's search list.
      - name: ndots
        value: "1"
  containers:
    - name: {{ .component }}
      image: "{{ $values.image.repository }}:{{ $values.image.tag | default $root.Chart.AppVersion }}"
      imagePullPolicy: {{ $values.image.pullPolicy }}
      ports:
        {{- range .ports }}
        - name: {{ index . 0 }}
          containerPort: {{ index . 1 }}
        {{- end }}
      env:
        {{- include "epd.environment" . | trim | nindent 8 }}
      startupProbe:
        httpGet:
          path: /health
          port: http
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: {{ divf $values.startSeconds 2 | ceil | int }}
      livenessProbe:
        httpGet:
          path: /health
          port: http
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet:
          path: /ready
          port: http
        periodSeconds: 2
        timeoutSeconds: 3
        failureThreshold: 2
      {{- if $leave }}
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ $leave | quote }}]
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      {{- with $values.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - name: seam
          mountPath: /secrets
          readOnly: true
        - name: tmp
          mountPath: /tmp
        - name: cache
          mountPath: /cache
        {{- if $values.sharedMemory }}
        - name: shm
          mountPath: /dev/shm
        {{- end }}
        {{- if $root.Values.model.volume }}
        - name: models
          mountPath: /models
          readOnly: true
        {{- end }}
  volumes:
    - name: seam
      secret:
        secretName: {{ include "epd.seamSecret" $root }}
        defaultMode: 0440
        items:
          - key: {{ $root.Values.seam.key }}
            path: epd
    - name: tmp
      emptyDir:
        sizeLimit: {{ $values.tmp }}
    - name: cache
      emptyDir:
        sizeLimit: {{ $values.cache }}
    {{- with $values.sharedMemory }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ . }}
    {{- end }}
    {{- with $root.Values.model.volume }}
    - name: models
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end -}}

{{/* The variables of either service; takes the same dict. */}}
{{- define "epd.environment" -}}
{{- $root := .root -}}
{{- $port := index (first .ports) 1 -}}
{{- $own := dict
    "EPD_MODEL" $root.Values.model.name
    "EPD_HOST" $root.Values.bindAddress
    "EPD_PORT" $port
    "EPD_SECRET_FILE" "/secrets/epd"
    "EPD_MM_FEATURE_TRANSPORT" "cpu"
    "EPD_DRAIN_TIMEOUT" .values.drainSeconds
-}}
{{- with $root.Values.model.revision }}{{ $_ := set $own "EPD_REVISION" . }}{{ end -}}
{{- $own = merge $own .environment -}}
{{- $given := merge (deepCopy .values.settings) $root.Values.settings -}}
{{- range $variable := concat (keys $own) (list "EPD_THREADS" "EPD_API_KEY" "EPD_PLAIN_SEAM") -}}
{{- if hasKey $given $variable -}}
{{- fail (printf "settings: %s is the chart's own; see values.yaml for what it follows" $variable) -}}
{{- end -}}
{{- end -}}
{{- range $variable, $value := merge (dict) $own (dict "EPD_LOG_FORMAT" "json") -}}
{{- if not (hasKey $given $variable) }}
- name: {{ $variable }}
  value: {{ include "epd.text" $value | quote }}
{{- end -}}
{{- end -}}
{{- range $variable, $value := $given }}
- name: {{ $variable }}
  value: {{ include "epd.text" $value | quote }}
{{- end }}
{{- if dig "requests" "cpu" "" .values.resources }}
# torch sees all cores of the node, and would take half of them. A part of a core counts as one.
- name: EPD_THREADS
  valueFrom:
    resourceFieldRef:
      resource: requests.cpu
      divisor: "1"
{{- end }}
{{- with $root.Values.model.hubToken }}
{{- if .existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- if and (eq .component "language") (or $root.Values.apiKeys.existingSecret $root.Values.apiKeys.value) }}
- name: EPD_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ include "epd.apiKeysSecret" $root }}
      key: {{ $root.Values.apiKeys.key }}
{{- end }}
{{- end -}}

{{/* A value as text. Helm reads all numbers as floating ones, and would write large ones with exponents. */}}
{{- define "epd.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- . | toString -}}
{{- end -}}
{{- end -}}
