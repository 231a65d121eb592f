{{/* Rules of egress; each takes the policy's values. */}}
{{- define "epd.namesEgress" -}}
{{- with .dns -}}
- to:
    {{- toYaml . | nindent 4 }}
  ports:
    - protocol: UDP
      port: 53
    - protocol: TCP
      port: 53
{{- end -}}
{{- end -}}

{{- define "epd.modelsEgress" -}}
- to:
    {{- include "epd.outside" . | nindent 4 }}
  ports:
    - protocol: TCP
      port: 443
{{- end -}}

{{/* All addresses but those that are never public, and what the values call inside. */}}
{{- define "epd.outside" -}}
{{- $four := list
    "0.0.0.0/8" "10.0.0.0/8" "100.64.0.0/10" "127.0.0.0/8" "168.63.129.16/32" "169.254.0.0/16" "172.16.0.0/12" "192.0.0.0/24"
    "192.0.2.0/24" "192.88.99.0/24" "192.168.0.0/16" "198.18.0.0/15" "198.51.100.0/24" "203.0.113.0/24" "224.0.0.0/3"
-}}
{{- $six := list "2001::/23" "2001:db8::/32" "2002::/16" "3fff::/20" -}}
{{- range .inside -}}
{{- if contains ":" . }}{{ $six = append $six . }}{{ else }}{{ $four = append $four . }}{{ end -}}
{{- end -}}
- ipBlock:
    cidr: 0.0.0.0/0
    except:
      {{- toYaml $four | nindent 6 }}
- ipBlock:
    # What is public is within this.
    cidr: 2000::/3
    except:
      {{- toYaml $six | nindent 6 }}
{{- end -}}
