{{/*
The chart renders the files of manifests/, so that both install the same objects. Namespaces and names are replaced in the text;
Deployments and the DaemonSet are parsed, changed by the values, and written again.
*/}}

{{/* The text of a file of manifests/ with this release's namespaces and names. Argument: (list $ PATH). */}}
{{- define "holdfast.text" -}}
{{- $root := index . 0 -}}
{{- $text := $root.Files.Get (printf "files/%s" (index . 1)) | required (printf "the chart lacks files/%s: package it with charts/holdfast/files" (index . 1)) -}}
{{- $text = $text | replace "namespace: holdfast-node" (printf "namespace: %s" $root.Values.nodeNamespace) -}}
{{- $text = $text | replace "'holdfast-node'" (printf "'%s'" $root.Values.nodeNamespace) -}}
{{- $text = $text | replace "holdfast-system" $root.Release.Namespace -}}
{{- with $root.Values.namePrefix -}}
{{- $text = regexReplaceAll `(?m)(^|[\s{])((?:name|policyName|resourceName|serviceAccountName|priorityClassName): )holdfast` $text (printf "${1}${2}%sholdfast" .) -}}
{{- $text = regexReplaceAll `resourceNames: \[("https:)?holdfast` $text (printf "resourceNames: [${1}%sholdfast" .) -}}
{{- $text = regexReplaceAll `(system:serviceaccount:[^:']+:)holdfast` $text (printf "${1}%sholdfast" .) -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* The objects of a file. Argument: (list $ PATH). */}}
{{- define "holdfast.file" -}}
{{- $root := index . 0 -}}
{{- range $doc := regexSplit "(?m)^---$" (include "holdfast.text" .) -1 }}
{{- $object := fromYaml $doc }}
{{- if $object.Error }}{{ fail (printf "%s: %s" (index $ 1) $object.Error) }}{{ end }}
{{- if has $object.kind (list "Deployment" "DaemonSet") }}
---
{{ include "holdfast.workload" (list $root $object) }}
{{- else if or $root.Values.highAvailability (ne $object.kind "PodDisruptionBudget") }}
---
{{ trim $doc }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A Deployment or DaemonSet with the values of its component. Argument: (list $ OBJECT). */}}
{{- define "holdfast.workload" -}}
{{- $root := index . 0 -}}
{{- $object := index . 1 -}}
{{- $spec := $object.spec.template.spec -}}
{{- $container := index $spec.containers 0 -}}
{{- $component := $container.name -}}
{{- $values := index $root.Values $component -}}
{{- $image := $root.Values.image -}}
{{- $tag := $image.tag | default $root.Chart.AppVersion -}}
{{- $_ := set $container "image" (printf "%s/%s:%s" $image.registry (base $container.image) $tag) -}}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy -}}
{{- range $container.env -}}
{{- if eq .name "AGENT_IMAGE" }}{{ $_ := set . "value" (printf "%s/holdfast-agent:%s" $image.registry $tag) }}{{ end -}}
{{- end -}}
{{- with $image.pullSecrets -}}
{{- $secrets := list -}}
{{- range . }}{{ $secrets = append $secrets (dict "name" .) }}{{ end -}}
{{- $_ := set $spec "imagePullSecrets" $secrets -}}
{{- end -}}
{{- if and (eq $object.kind "Deployment") (not $root.Values.highAvailability) }}{{ $_ := set $object.spec "replicas" 1 }}{{ end -}}
{{- $args := concat $container.args (include "holdfast.ownFlags" (list $root $component) | fromYamlArray) -}}
{{- range $flag, $value := $values.flags -}}
{{- range ($value | kindIs "slice" | ternary $value (list $value)) -}}
{{- $args = append $args (printf "--%s=%v" $flag (kindIs "float64" . | ternary (toJson .) .)) -}}
{{- end -}}
{{- end -}}
{{- with $values.config -}}
{{- $args = append $args "--config=/etc/holdfast/config.yaml" -}}
{{- $name := include "holdfast.fileName" (list $root $component) -}}
{{- $_ := set $spec "volumes" (append ($spec.volumes | default list) (dict "name" "config" "configMap" (dict "name" $name))) -}}
{{- $mount := dict "name" "config" "mountPath" "/etc/holdfast" "readOnly" true -}}
{{- $_ := set $container "volumeMounts" (append ($container.volumeMounts | default list) $mount) -}}
{{- end -}}
{{- $_ := set $container "args" $args -}}
{{- with $values.env -}}
{{- $_ := set $container "env" (concat ($container.env | default list) .) -}}
{{- end -}}
{{- $_ := set $container "resources" (mergeOverwrite (deepCopy $container.resources) $values.resources) -}}
{{- if eq $component "scheduler" -}}
{{- range $spec.volumes -}}
{{- if .configMap }}{{ $_ := set .configMap "name" (include "holdfast.configName" $root) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if eq $component "node" }}{{ include "holdfast.driver" (list $values $spec) }}{{ end -}}
{{- with $values.podAnnotations -}}
{{- $meta := $object.spec.template.metadata -}}
{{- $_ := set $meta "annotations" (mergeOverwrite (dict) ($meta.annotations | default dict) .) -}}
{{- end -}}
{{- $_ := set $object.spec.template "spec" (mergeOverwrite $spec $values.pod) -}}
{{- toYaml $object -}}
{{- end -}}

{{/* The flags of the controller that follow from other values, as a list. Argument: (list $ COMPONENT). */}}
{{- define "holdfast.ownFlags" -}}
{{- $root := index . 0 -}}
{{- $flags := list -}}
{{- if eq (index . 1) "controller" -}}
{{- with $root.Values.image.pullSecrets }}{{ $flags = append $flags (printf "--agent-pull-secrets=%s" (join "," .)) }}{{ end -}}
{{- if ne $root.Values.image.pullPolicy "IfNotPresent" }}{{ $flags = append $flags (printf "--agent-pull-policy=%s" $root.Values.image.pullPolicy) }}{{ end -}}
{{- if $root.Values.readWithPullSecrets }}{{ $flags = append $flags "--image-pull-secrets" }}{{ end -}}
{{- if ne $root.Release.Namespace "holdfast-system" }}{{ $flags = append $flags (printf "--namespace=%s" $root.Release.Namespace) }}{{ end -}}
{{- with $root.Values.namePrefix }}{{ $flags = append $flags (printf "--name-prefix=%s" .) }}{{ end -}}
{{- end -}}
{{- toYaml $flags -}}
{{- end -}}

{{/* Where the daemon finds NVIDIA's library, beside the usual places. Argument: (list VALUES PODSPEC). */}}
{{- define "holdfast.driver" -}}
{{- $values := index . 0 -}}
{{- $spec := index . 1 -}}
{{- $container := index $spec.containers 0 -}}
{{- if $values.gkeDriver -}}
{{- $path := "/home/kubernetes/bin/nvidia" -}}
{{- $_ := set $spec "volumes" (append $spec.volumes (dict "name" "gke-driver" "hostPath" (dict "path" $path "type" "DirectoryOrCreate"))) -}}
{{- $mount := dict "name" "gke-driver" "mountPath" (printf "/host%s" $path) "readOnly" true "mountPropagation" "HostToContainer" -}}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts $mount) -}}
{{- end -}}
{{- with $values.runtimeClass -}}
{{- $_ := set $spec "runtimeClassName" . -}}
{{- range $container.env -}}
{{- if eq .name "NVIDIA_VISIBLE_DEVICES" }}{{ $_ := set . "value" "all" }}{{ end -}}
{{- end -}}
{{- $_ := set $container "env" (append $container.env (dict "name" "NVIDIA_DRIVER_CAPABILITIES" "value" "utility")) -}}
{{- end -}}
{{- end -}}

{{/* The configuration file of controller or daemon. Argument: (list $ COMPONENT). */}}
{{- define "holdfast.fileText" -}}
{{- $component := index . 1 -}}
{{- $kind := eq $component "controller" | ternary "ControllerConfiguration" "NodeConfiguration" -}}
{{- $head := dict "apiVersion" "config.holdfast.dev/v1alpha1" "kind" $kind -}}
{{- toYaml (mergeOverwrite $head (index (index . 0).Values $component).config) -}}
{{- end -}}

{{/* The name of its ConfigMap carries a hash of the content, as that of the scheduler. Argument: (list $ COMPONENT). */}}
{{- define "holdfast.fileName" -}}
{{- printf "%sholdfast-%s-config-%s" (index . 0).Values.namePrefix (index . 1) (include "holdfast.fileText" . | sha256sum | trunc 10) -}}
{{- end -}}

{{/* The ConfigMap of a configuration file, if the values have one. Argument: (list $ COMPONENT NAMESPACE). */}}
{{- define "holdfast.fileMap" -}}
{{- if (index (index . 0).Values (index . 1)).config }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "holdfast.fileName" . }}
  namespace: {{ index . 2 }}
  labels:
    app.kubernetes.io/part-of: holdfast
data:
  config.yaml: |
    {{- include "holdfast.fileText" . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* The scheduler's configuration. */}}
{{- define "holdfast.config" -}}
{{- $text := include "holdfast.text" (list . "scheduler/config.yaml") -}}
{{- with .Values.scheduler.configuration -}}
{{- $text = toYaml (mergeOverwrite (fromYaml $text) .) -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* The name of its ConfigMap carries a hash of the content, so that a change rolls the Deployment and a rollback finds the earlier one. */}}
{{- define "holdfast.configName" -}}
{{- printf "%sholdfast-scheduler-config-%s" .Values.namePrefix (include "holdfast.config" . | sha256sum | trunc 10) -}}
{{- end -}}

{{/* An object that stays at uninstall. Argument: (list $ PATH). */}}
{{- define "holdfast.kept" -}}
{{- $object := include "holdfast.text" . | fromYaml -}}
{{- $_ := set $object.metadata "annotations" (mergeOverwrite ($object.metadata.annotations | default dict) (dict "helm.sh/resource-policy" "keep")) -}}
---
{{ toYaml $object }}
{{- end -}}
