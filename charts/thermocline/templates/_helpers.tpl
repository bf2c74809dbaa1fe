{{- define "thermocline.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* The names of what belongs to the release: its own name, unless that says it already. */}}
{{- define "thermocline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "thermocline.name" .) .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s-operator" .Release.Name (include "thermocline.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Not the name that services' pods have: a resource may be called like the release. */}}
{{- define "thermocline.selector" -}}
app.kubernetes.io/name: thermocline-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "thermocline.labels" -}}
{{ include "thermocline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "thermocline.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "thermocline.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image's reference from {repository, tag, digest}; the chart's appVersion where no tag is given. */}}
{{- define "thermocline.image" -}}
{{- $image := index . 0 -}}
{{- $root := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The namespaces that the operator looks after, separated by commas; empty: all of them. */}}
{{- define "thermocline.watched" -}}
{{- if not .Values.clusterWide -}}
{{- .Values.watchNamespaces | default (list .Release.Namespace) | uniq | sortAlpha | join "," -}}
{{- end -}}
{{- end -}}
