{{- /* The rows of files/needs.yaml that are asked for: "kind name" → row. */}}
{{- define "gpuchaos.agentRows" -}}
{{- $table := .Files.Get "files/needs.yaml" | fromYaml -}}
{{- $rows := dict -}}
{{- range .Values.agent.collectors }}
{{- $_ := set $rows (printf "collector %s" .) (index $table.collectors .) -}}
{{- end }}
{{- range .Values.agent.faults }}
{{- $words := splitList "/" . -}}
{{- $fault := index $table.faults (first $words) -}}
{{- if gt (len $words) 1 }}
{{- $_ := set $rows (printf "fault %s" .) (index $fault.forms (last $words)) -}}
{{- else if $fault.forms }}
{{- $name := . -}}
{{- range $form, $row := $fault.forms }}{{ $_ := set $rows (printf "fault %s/%s" $name $form) $row }}{{ end -}}
{{- else }}
{{- $_ := set $rows (printf "fault %s" .) $fault -}}
{{- end }}
{{- end }}
{{- toYaml $rows -}}
{{- end }}

{{- /* Their sum, as YAML. `capabilities` is name → who wants it, and why. */}}
{{- define "gpuchaos.agentNeeds" -}}
{{- $agent := .Values.agent -}}
{{- $sum := dict "capabilities" dict -}}
{{- range $who, $row := include "gpuchaos.agentRows" . | fromYaml }}
{{- range $key := list "hostPID" "hostNetwork" "hostPath" "privileged" "devKmsg" "debugfs" "corruptible" "kernelLog" "gpu" "seccomp" "apparmor" }}
{{- with index ($row | default dict) $key }}{{ $_ := set $sum $key . }}{{ end -}}
{{- end }}
{{- range $name, $why := ($row | default dict).capabilities }}
{{- $_ := set $sum.capabilities $name (append (index $sum.capabilities $name | default list) (printf "%s: %s" $who $why)) -}}
{{- end }}
{{- end }}
{{- if and $sum.kernelLog (eq $agent.kernelLog "kmsg") }}{{ $_ := set $sum "devKmsg" true }}{{ $_ := set $sum "privileged" true }}{{ end -}}
{{- if $agent.infiniband }}{{ $_ := set $sum "privileged" true }}{{ end -}}
{{- $writable := false -}}
{{- range $agent.hostPaths }}{{ if not .readOnly }}{{ $writable = true }}{{ end }}{{ end -}}
{{- if and $sum.hostPath (not $writable) }}{{ fail "agent.faults: storage-disconnect and certificate-expiry need a folder of the node in agent.hostPaths, with readOnly: false" }}{{ end -}}
{{- if and $sum.corruptible (not $agent.corruptible) }}{{ fail "agent.faults: memory-corruption/file needs agent.corruptible, the folders in which it may flip bits" }}{{ end -}}
{{- if and $agent.corruptible (not $sum.corruptible) }}{{ fail "agent.corruptible: memory-corruption/file is not in agent.faults, so nothing may be flipped; take it out, or enable the fault" }}{{ end -}}
{{- toYaml $sum -}}
{{- end }}

{{- define "gpuchaos.agentLabels" -}}
{{- $asked := dict -}}
{{- range $setting, $label := .Values.agent.fromNodeLabels }}{{ if $label }}{{ $_ := set $asked $setting $label }}{{ end }}{{ end -}}
{{- if $asked }}{{ toJson $asked }}{{ end -}}
{{- end }}

{{- /* agent.yaml: what the chart makes, then agent.settings, which may not name the same. */}}
{{- define "gpuchaos.agentSettings" -}}
{{- $agent := .Values.agent -}}
{{- $made := dict "cluster" .Values.cluster "state_dir" $agent.stateDir "collectors" $agent.collectors "kernel_log" $agent.kernelLog "http_port" 9470 -}}
{{- if not $agent.fromNodeLabels.cell }}{{ $_ := set $made "cell" $agent.cell }}{{ end -}}
{{- if $agent.faults }}
{{- $_ := set $made "keyring" "/etc/gpuchaos/keyring/keyring.json" -}}
{{- else }}
{{- $_ := set $made "most_faults" 0 -}}
{{- end }}
{{- with $agent.corruptible }}{{ $_ := set $made "corruptible" . }}{{ end -}}
{{- range $name, $_ := $agent.settings }}
{{- if or (hasKey $made $name) (has $name (list "cell" "keyring" "corruptible" "node" "http_host")) (index $agent.fromNodeLabels $name) }}{{ fail (printf "agent.settings.%s: the chart sets it, from another value; take it out" $name) }}{{ end -}}
{{- end }}
{{- toYaml (merge $made $agent.settings) -}}
{{- end }}

{{- /* none, or the name of the SecurityContextConstraints that suffices (OpenShift). */}}
{{- define "gpuchaos.scc" -}}
{{- $needs := include "gpuchaos.agentNeeds" . | fromYaml -}}
{{- if .Values.agent.openshift.sccName }}{{ .Values.agent.openshift.sccName }}
{{- else if or $needs.privileged $needs.hostPID $needs.hostNetwork $needs.capabilities $needs.seccomp }}privileged
{{- else }}hostmount-anyuid{{ end -}}
{{- end }}
