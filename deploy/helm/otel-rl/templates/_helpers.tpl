{{- define "otel-rl.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Of one part: by these its pods are found. Call it with (list . "bridge"). */ -}}
{{- define "otel-rl.selector" -}}
app.kubernetes.io/name: otel-rl
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "otel-rl.metadata" -}}
name: {{ (index . 0).Release.Name }}-{{ index . 1 }}
labels:
  {{- include "otel-rl.selector" . | nindent 2 }}
  {{- include "otel-rl.labels" (index . 0) | nindent 2 }}
{{- end }}

{{- define "otel-rl.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "otel-rl.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # the variables of services would be taken for settings
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "otel-rl.user" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "otel-rl.container" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Asked at path and port: until it is up, then whether it takes requests, then whether it hangs. */ -}}
{{- define "otel-rl.probes" -}}
{{- $get := toJson . -}}
startupProbe: # a journal or a queue of some gigabytes is recovered first
  httpGet: {{ $get }}
  periodSeconds: 5
  failureThreshold: 60
readinessProbe:
  httpGet: {{ $get }}
  timeoutSeconds: 5
livenessProbe: # a restart helps only against a hang: what is busy is let be
  httpGet: {{ $get }}
  timeoutSeconds: 10
  periodSeconds: 20
  failureThreshold: 6
{{- end }}

{{- define "otel-rl.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .className }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests: {storage: {{ .size }}}
{{- end }}

{{- /* The files of collector_config that an agent, a gateway or Jaeger reads, as the data of its ConfigMap. */ -}}
{{- define "otel-rl.agent.files" -}}
{{- $file := .Files.Get "files/agent.yaml" -}}
{{- if not .Values.agent.experiment }}
  {{- /* Nobody's metrics would be refused by the bridge. */ -}}
  {{- $file = regexReplaceAll "(?m)^    metrics/node:\n(      .*\n)+" $file "" -}}
{{- end -}}
agent.yaml: |
  {{- $file | nindent 2 }}
{{- end }}

{{- define "otel-rl.gateway.files" -}}
{{- range prepend .Values.gateway.also "gateway" }}
{{ . }}.yaml: |
  {{- required (printf "gateway.also: there is no %s.yaml" .) ($.Files.Get (printf "files/%s.yaml" .)) | nindent 2 }}
{{- end }}
{{- with .Values.gateway.config }}
own.yaml: |
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "otel-rl.jaeger.files" -}}
jaeger.yaml: |
  {{- .Files.Get "files/jaeger.yaml" | nindent 2 }}
{{- end }}
