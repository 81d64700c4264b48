{{- define "labels" -}}
app.kubernetes.io/name: shop
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "metadata" -}}
name: {{ .Release.Name }}
labels:
  {{- include "labels" . | nindent 2 }}
{{- end }}
