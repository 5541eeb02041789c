{{- /* The secret with a part's own user, or the one of all. Call with (list $ part). */}}
{{- define "gpuchaos.saslSecret" -}}
{{- $top := index . 0 -}}
{{- (index $top.Values (index . 1)).kafka.saslSecretName | default $top.Values.kafka.sasl.secretName -}}
{{- end }}

{{- define "gpuchaos.clientSecret" -}}
{{- $top := index . 0 -}}
{{- (index $top.Values (index . 1)).kafka.clientSecretName | default $top.Values.kafka.tls.clientSecretName -}}
{{- end }}

{{- define "gpuchaos.kafkaEnv" -}}
{{- $kafka := (index . 0).Values.kafka -}}
{{- $encrypted := hasSuffix "SSL" $kafka.securityProtocol -}}
- {name: KAFKA_BOOTSTRAP_SERVERS, value: {{ $kafka.bootstrapServers | quote }}}
- {name: KAFKA_SECURITY_PROTOCOL, value: {{ $kafka.securityProtocol }}}
{{- if and $encrypted (or $kafka.tls.ca.configMapName $kafka.tls.ca.secretName) }}
- {name: KAFKA_CA_FILE, value: /etc/gpuchaos/kafka-ca/ca.pem}
{{- end }}
{{- if and $encrypted (include "gpuchaos.clientSecret" .) }}
- {name: KAFKA_CERT_FILE, value: /etc/gpuchaos/kafka-client/tls.crt}
- {name: KAFKA_KEY_FILE, value: /etc/gpuchaos/kafka-client/tls.key}
{{- end }}
{{- if hasPrefix "SASL" $kafka.securityProtocol }}
- {name: KAFKA_SASL_MECHANISM, value: {{ $kafka.sasl.mechanism }}}
- name: KAFKA_SASL_USERNAME
  valueFrom: {secretKeyRef: {name: {{ include "gpuchaos.saslSecret" . }}, key: {{ $kafka.sasl.usernameKey }}}}
- name: KAFKA_SASL_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "gpuchaos.saslSecret" . }}, key: {{ $kafka.sasl.passwordKey }}}}
{{- end }}
{{- with (index . 0).Values.tracing.endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{- define "gpuchaos.kafkaMounts" -}}
{{- $kafka := (index . 0).Values.kafka -}}
{{- if hasSuffix "SSL" $kafka.securityProtocol }}
{{- if or $kafka.tls.ca.configMapName $kafka.tls.ca.secretName }}
- {name: kafka-ca, mountPath: /etc/gpuchaos/kafka-ca, readOnly: true}
{{- end }}
{{- if include "gpuchaos.clientSecret" . }}
- {name: kafka-client, mountPath: /etc/gpuchaos/kafka-client, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{- define "gpuchaos.kafkaVolumes" -}}
{{- $kafka := (index . 0).Values.kafka -}}
{{- if hasSuffix "SSL" $kafka.securityProtocol }}
{{- with $kafka.tls.ca }}
{{- if .configMapName }}
- name: kafka-ca
  configMap: {name: {{ .configMapName }}, items: [{key: {{ .key }}, path: ca.pem}]}
{{- else if .secretName }}
- name: kafka-ca
  secret: {secretName: {{ .secretName }}, items: [{key: {{ .key }}, path: ca.pem}]}
{{- end }}
{{- end }}
{{- with include "gpuchaos.clientSecret" . }}
- name: kafka-client
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}
