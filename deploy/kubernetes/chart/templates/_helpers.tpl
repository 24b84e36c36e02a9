{{- define "drainfsm.job" -}}
{{ .Values.job | default .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- define "drainfsm.labels" -}}
app.kubernetes.io/name: drainfsm
app.kubernetes.io/instance: {{ include "drainfsm.job" . }}
{{- end }}
