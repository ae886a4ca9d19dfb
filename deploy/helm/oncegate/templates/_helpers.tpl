{{- define "oncegate.labels" -}}
app.kubernetes.io/name: oncegate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "oncegate.selector" -}}
app.kubernetes.io/name: oncegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "oncegate.backup.selector" -}}
app.kubernetes.io/name: oncegate-backup
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "oncegate.name" -}}
{{- if eq .Release.Name "oncegate" }}oncegate{{ else }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}-oncegate{{ end }}
{{- end }}
