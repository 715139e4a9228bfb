{{- define "wva.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "wva.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Short enough for a suffix of ours in every name of 63 characters. */}}
{{- define "wva.fullname" -}}
{{- $name := include "wva.name" . -}}
{{- $own := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $own .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "wva.selectorLabels" -}}
app.kubernetes.io/name: {{ include "wva.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "wva.labels" -}}
{{ include "wva.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ include "wva.chart" . }}
{{- end -}}

{{- define "wva.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The one subject that every binding of the program names. */}}
{{- define "wva.subject" -}}
{kind: ServiceAccount, name: {{ include "wva.fullname" . }}, namespace: {{ .Release.Namespace }}}
{{- end -}}

{{/* The APIServices that this release owns, and the value that says so. Of several versions, clients prefer the highest priority. */}}
{{- define "wva.apiServices" -}}
{{- if .Values.apiService.enabled }}
- {group: external.metrics.k8s.io, version: v1beta1, priority: 100, value: apiService.enabled}
{{- end }}
{{- if .Values.apiService.custom.enabled }}
- {group: custom.metrics.k8s.io, version: v1beta1, priority: 100, value: apiService.custom.enabled}
- {group: custom.metrics.k8s.io, version: v1beta2, priority: 200, value: apiService.custom.enabled}
{{- end }}
{{- end -}}

{{/* Every APIService that may point to the program: what its rights to them are named by. */}}
{{- define "wva.apiServiceNames" -}}
[v1beta1.external.metrics.k8s.io, v1beta1.custom.metrics.k8s.io, v1beta2.custom.metrics.k8s.io]
{{- end -}}

{{/* For the metadata of every APIService of the chart. */}}
{{- define "wva.apiServiceAnnotations" -}}
{{- with .Values.tls.injectCaFrom -}}
annotations: {cert-manager.io/inject-ca-from: {{ . | quote }}}
{{- end -}}
{{- end -}}

{{/* For the spec of every APIService of the chart. */}}
{{- define "wva.apiServiceCaBundle" -}}
{{- with .Values.tls.caBundle -}}
caBundle: {{ b64enc . }}
{{- end -}}
{{- end -}}
