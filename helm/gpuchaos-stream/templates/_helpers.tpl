{{- define "gpuchaos.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name "gpuchaos" | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* Labels that a selector goes by. Call with (list $ "worker"). */}}
{{- define "gpuchaos.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ $top.Chart.Name }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "gpuchaos.labels" -}}
{{- $top := index . 0 -}}
{{ include "gpuchaos.selector" . }}
app.kubernetes.io/part-of: gpuchaos
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version }}
{{- end }}

{{- /* Of pods: without versions, so that a new chart restarts only what it changes. */}}
{{- define "gpuchaos.podLabels" -}}
{{ include "gpuchaos.selector" . }}
app.kubernetes.io/part-of: gpuchaos
{{- end }}

{{- define "gpuchaos.image" -}}
{{- $top := index . 0 -}}
{{- $image := index $top.Values.images (index . 1) -}}
{{- $name := $image.repository -}}
{{- with $top.Values.images.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if $image.digest }}{{ $name }}@{{ $image.digest }}{{ else }}{{ $name }}:{{ $image.tag | default $top.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "gpuchaos.required" -}}
{{- $v := .Values -}}
{{- if not $v.kafka.bootstrapServers }}{{ fail "kafka.bootstrapServers is empty: name the brokers, as host:port" }}{{ end -}}
{{- if and $v.worker.enabled (not $v.keys.control.secretName) }}{{ fail "keys.control.secretName is empty: workers sign with it (gpuchaos keys make --role control; kubectl create secret generic NAME --from-file=control.json)" }}{{ end -}}
{{- if and $v.keys.keyring.configMapName $v.keys.keyring.secretName }}{{ fail "keys.keyring has a configMapName and a secretName: keep one" }}{{ end -}}
{{- $ring := or $v.keys.keyring.configMapName $v.keys.keyring.secretName -}}
{{- if and $v.worker.enabled (not $ring) }}{{ fail "keys.keyring is empty: workers believe what it holds; name a configMapName or a secretName" }}{{ end -}}
{{- if and $v.agent.enabled $v.agent.faults (not $ring) }}{{ fail "keys.keyring is empty: agents with faults believe what it holds; name a configMapName or a secretName" }}{{ end -}}
{{- if and $v.kafka.tls.ca.configMapName $v.kafka.tls.ca.secretName }}{{ fail "kafka.tls.ca has a configMapName and a secretName: keep one" }}{{ end -}}
{{- if and (hasPrefix "SASL" $v.kafka.securityProtocol) (not $v.kafka.sasl.secretName) }}{{ fail (printf "kafka.securityProtocol is %s and kafka.sasl.secretName is empty: name the secret with user and password" $v.kafka.securityProtocol) }}{{ end -}}
{{- $scaling := $v.worker.autoscaling -}}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}{{ fail (printf "worker.autoscaling: minReplicas is %d and maxReplicas %d: the most must not be below the least" (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}{{ end -}}
{{- $most := int (ternary $scaling.maxReplicas $v.worker.replicas $scaling.enabled) -}}
{{- if and $v.worker.enabled $v.topics.enabled (gt $most (int $v.topics.telemetryPartitions)) }}{{ fail (printf "%s is %d and topics.telemetryPartitions %d: a worker without a partition has nothing to do; have more partitions (they cannot be changed later), or fewer workers" (ternary "worker.autoscaling.maxReplicas" "worker.replicas" $scaling.enabled) $most (int $v.topics.telemetryPartitions)) }}{{ end -}}
{{- if and $v.web.tokens.secretName (not $v.keys.operator.secretName) }}{{ fail "web.tokens is set and keys.operator.secretName is empty: who may stop needs a key that may" }}{{ end -}}
{{- end }}

{{- define "gpuchaos.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "gpuchaos.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* What all pods have in common. Call with (list $ "worker" values). The API is nobody's to use: no token is
mounted. Service links off: a service called `kafka` would otherwise set KAFKA_PORT, and one called `gpuchaos` more. */}}
{{- define "gpuchaos.pod" -}}
{{- $top := index . 0 -}}
{{- $values := index . 2 -}}
serviceAccountName: {{ include "gpuchaos.fullname" $top }}-{{ index . 1 }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $top.Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gpuchaos.spread" -}}
{{- range $number, $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" -}}
{{- if $number }}
{{ end -}}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "gpuchaos.selector" $ | nindent 6 }}
{{- end }}
{{- end }}

{{- /* Probes of a status port. Call with (list port path), the path that fails for what a restart mends. */}}
{{- define "gpuchaos.probes" -}}
{{- $port := index . 0 -}}
{{- $alive := index . 1 -}}
startupProbe: {httpGet: {path: {{ $alive }}, port: {{ $port }}}, periodSeconds: 2, timeoutSeconds: 5, failureThreshold: 60}
livenessProbe: {httpGet: {path: {{ $alive }}, port: {{ $port }}}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6}
readinessProbe: {httpGet: {path: /readyz, port: {{ $port }}}, periodSeconds: 5, timeoutSeconds: 5}
{{- end }}

{{- define "gpuchaos.keyringVolume" -}}
{{- $ring := .Values.keys.keyring -}}
- name: keyring
  {{- if $ring.configMapName }}
  configMap: {name: {{ $ring.configMapName }}, items: [{key: {{ $ring.key }}, path: keyring.json}]}
  {{- else }}
  secret: {secretName: {{ $ring.secretName }}, items: [{key: {{ $ring.key }}, path: keyring.json}], defaultMode: 0440}
  {{- end }}
{{- end }}
