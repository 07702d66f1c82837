{{- define "ringmaster.fullname" -}}
{{- .Values.fullnameOverride | default (printf "%s-operator" .Release.Name) | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ringmaster.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "ringmaster.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "ringmaster.selector" -}}
app.kubernetes.io/name: ringmaster-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ringmaster.labels" -}}
{{ include "ringmaster.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: ringmaster
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "ringmaster.image" -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .version) -}}
{{- end -}}

{{/* What the operator does in a namespace with jobs: each verb is one that it uses. */}}
{{- define "ringmaster.rules" -}}
- apiGroups: [ringmaster.dev]
  resources: [trainingjobs]
  verbs: [get, list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [ringmaster.dev]
  resources: [trainingjobs/status]
  verbs: [update]
- apiGroups: [ringmaster.dev]
  resources: [trainingjobs/finalizers] # to set blockOwnerDeletion where that is policed
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection] # patch: scheduling gates
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims] # volumeClaimPolicies; delete: whenScaled
  verbs: [get, list, create, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies] # network.networkPolicy
  verbs: [get, create, delete]
- apiGroups: [scheduling.k8s.io, scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups] # of the gang scheduler that the cluster has
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets] # each job's key and what its coordinator trusts; the operator lists none
  verbs: [get, create, update, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end -}}
