{{- define "obleth.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of a component: (list $ "dataplane"). */}}
{{- define "obleth.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 | quote }}
{{- end -}}

{{/* All labels of a component's objects: (list $ "dataplane"). */}}
{{- define "obleth.labels" -}}
{{- $root := index . 0 -}}
{{ include "obleth.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | quote }}
{{- end -}}

{{- define "obleth.secretName" -}}
{{- .Values.secrets.existingSecret | default (include "obleth.fullname" .) -}}
{{- end -}}

{{- define "obleth.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "obleth.fullname" .) -}}
{{- end -}}

{{- define "obleth.databaseUrl" -}}
{{- if .Values.postgresql.enabled -}}
{{- $password := required "postgresql.password is required for the bundled PostgreSQL" .Values.postgresql.password -}}
postgresql+asyncpg://obleth:{{ $password }}@{{ include "obleth.fullname" . }}-postgresql:5432/obleth
{{- else -}}
{{- required "postgresql.externalUrl is required where postgresql.enabled is false" .Values.postgresql.externalUrl -}}
{{- end -}}
{{- end -}}

{{- define "obleth.redisUrl" -}}
{{- if .Values.redis.enabled -}}
redis://{{ include "obleth.fullname" . }}-redis:6379/0
{{- else -}}
{{- required "redis.externalUrl is required where redis.enabled is false" .Values.redis.externalUrl -}}
{{- end -}}
{{- end -}}

{{/* A value as a variable has it: numbers without an exponent, lists with commas. */}}
{{- define "obleth.variable" -}}
{{- if kindIs "slice" . -}}
{{- join "," . | quote -}}
{{- else if kindIs "string" . -}}
{{- . | quote -}}
{{- else -}}
{{- toJson . | quote -}}
{{- end -}}
{{- end -}}

{{/* The most data planes there can be: what a limit is divided by where Redis is away at the start. */}}
{{- define "obleth.expectedReplicas" -}}
{{- with .Values.dataplane -}}
{{- ternary .autoscaling.maxReplicas .replicas .autoscaling.enabled | int -}}
{{- end -}}
{{- end -}}

{{- define "obleth.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
{{- end -}}

{{/* What a container of obleth's may do: nothing but serve. */}}
{{- define "obleth.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "obleth.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Pods start anew when what they read has changed. */}}
{{- define "obleth.checksums" -}}
checksum/settings: {{ include (print .Template.BasePath "/settings.yaml") . | sha256sum | quote }}
checksum/secret: {{ include (print .Template.BasePath "/secret.yaml") . | sha256sum | quote }}
{{- end -}}

{{- define "obleth.envFrom" -}}
- configMapRef:
    name: {{ include "obleth.fullname" . | quote }}
- secretRef:
    name: {{ include "obleth.secretName" . | quote }}
{{- end -}}

{{/* Where a component's pods may go: (list $ .Values.dataplane "dataplane"). */}}
{{- define "obleth.placement" -}}
{{- $root := index . 0 -}}
{{- $of := index . 1 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "obleth.selector" (list $root (index . 2)) | nindent 8 }}
{{- end -}}
