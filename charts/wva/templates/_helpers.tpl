{{- define "wva.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "wva.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that every name with a suffix fits into 63. */}}
{{- define "wva.fullname" -}}
{{- $name := include "wva.name" . -}}
{{- $own := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $own .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* For objects outside the release namespace: releases of one name in two namespaces must not share them. RBAC allows a colon in names. */}}
{{- define "wva.globalName" -}}
{{ .Release.Namespace }}:{{ include "wva.fullname" . }}
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

{{/* The subject of every binding: the program's ServiceAccount. */}}
{{- define "wva.subject" -}}
{kind: ServiceAccount, name: {{ include "wva.fullname" . }}, namespace: {{ .Release.Namespace }}}
{{- end -}}

{{/* The APIServices that this release owns, each with the value that enables it. Clients prefer the version with the highest priority. */}}
{{- define "wva.apiServices" -}}
{{- if .Values.apiService.enabled }}
- {group: external.metrics.k8s.io, version: v1beta1, priority: 100, value: apiService.enabled}
{{- end }}
{{- if .Values.apiService.custom.enabled }}
- {group: custom.metrics.k8s.io, version: v1beta1, priority: 100, value: apiService.custom.enabled}
- {group: custom.metrics.k8s.io, version: v1beta2, priority: 200, value: apiService.custom.enabled}
{{- end }}
{{- if (.Values.apiService.resource).enabled }}
- {group: metrics.k8s.io, version: v1beta1, priority: 100, value: apiService.resource.enabled}
{{- end }}
{{- if include "wva.servesExplanations" . }}
- {group: decisions.wva.llmd.ai, version: v1alpha1, priority: 100, value: apiService.explanations.enabled}
{{- end }}
{{- end -}}

{{/* Not empty if this release owns the APIService of explanations. While one exists whose server does not know it, Kubernetes deletes no
namespace: so an upgrade adds it only once no pod of a version that does not is left. */}}
{{- define "wva.servesExplanations" -}}
{{- if and (.Values.apiService.explanations | default dict).enabled .Values.apiService.enabled -}}
{{- $deployment := lookup "apps/v1" "Deployment" .Release.Namespace (include "wva.fullname" .) -}}
{{- $exists := lookup "apiregistration.k8s.io/v1" "APIService" "" "v1alpha1.decisions.wva.llmd.ai" -}}
{{- $meta := $deployment.metadata | default dict -}}
{{- $status := $deployment.status | default dict -}}
{{- $isMarked := hasKey ($meta.annotations | default dict) "wva.llmd.ai/serves-explanations" -}}
{{- $isSeen := eq (toString $status.observedGeneration) (toString $meta.generation) -}}
{{- $isRolledOut := and $isMarked $isSeen (eq (toString $status.updatedReplicas) (toString $status.replicas)) -}}
{{- if or $exists (not $deployment) $isRolledOut -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* Every APIService that may point to the program: the names in its RBAC rules. */}}
{{- define "wva.apiServiceNames" -}}
[v1beta1.external.metrics.k8s.io, v1beta1.custom.metrics.k8s.io, v1beta2.custom.metrics.k8s.io, v1beta1.metrics.k8s.io, v1alpha1.decisions.wva.llmd.ai]
{{- end -}}

{{/* Annotations of every APIService of the chart. */}}
{{/* The Service says whether another program has changed what the APIService points to. */}}
{{- define "wva.apiServiceAnnotations" -}}
annotations:
  wva.llmd.ai/service: {{ .Release.Namespace }}/{{ include "wva.fullname" . }}
{{- with .Values.tls.injectCaFrom }}
  cert-manager.io/inject-ca-from: {{ . | quote }}
{{- end -}}
{{- end -}}

{{/* caBundle of every APIService of the chart. */}}
{{- define "wva.apiServiceCaBundle" -}}
{{- with .Values.tls.caBundle -}}
caBundle: {{ b64enc . }}
{{- end -}}
{{- end -}}
