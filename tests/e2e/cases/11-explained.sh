# shellcheck shell=bash
# (11) The object's condition and `wva explain`, which reads from the running program, name the limit that holds a number back: a quota, and
# GPUs of the nodes that others use. One model can have another analyzer than the others. A namespace can be excluded.

set_load "$(calculate "0.4 * $pod_rps")"
allow 2 # more of an earlier case would stay, because a quota only holds additions back
eventually 60 "maximum 2: there are no more replicas" ready_are "<=" 2
spare='kvSpareTrigger: 0.79' # almost all of the KV cache must be spare, so one more replica is always needed

allow_explain
configure "$release_namespace" "$spare
enableLimiter: true
limiters: [{type: quota, name: team, scope: cluster, quotas: {H100: 2}}]"
eventually 60 "the quota is in force" condition_says "trigger 0.79"
allow 3 # no earlier: a third replica of before the quota would stay
bound="team of H100: 0.0 of 2.0 free, 2.0 used"
eventually 120 "a quota of two GPUs binds, and the condition says so" condition_says "2 instead of 3: $bound"
eventually 40 "wva explain says so after the next evaluation" explanation_has "bound by $bound"
assert_eq "the number" "$(value)" 2

kubectl create namespace batch >/dev/null
kubectl -n batch apply -f - >/dev/null <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: training}
spec: {containers: [{name: c, image: registry.k8s.io/pause, resources: {limits: {nvidia.com/gpu: "14"}}}]}
YAML
kubectl -n batch wait --for=condition=PodScheduled pod/training --timeout=20s >/dev/null
install_chart --set limits.inventory=true
route_api_server_to "$wva_port"
configure "$release_namespace" "$spare
enableLimiter: true"
bound="inventory of H100: 0.0 of 16.0 free, 16.0 used, 14.0 of these by others"
eventually 60 "the nodes' GPUs bind, most of them used by others" condition_says "2 instead of 3: $bound"
eventually 40 "wva explain says so" explanation_has "bound by $bound"
assert_eq "the number" "$(value)" 2
kubectl delete namespace batch --wait=false >/dev/null
eventually 60 "they are free again: one more replica" value_is "==" 3

configure "$release_namespace" "$spare" "$model=model_id: $model
namespace: llm
analyzerName: queueing-model"
eventually 60 "another analyzer decides about this model" explanation_has "queueing-model: "
set_load "$(calculate "0.15 * $pod_rps")"
eventually 90 "it finds that a lower load needs fewer replicas" value_is "<" 3

kubectl annotate namespace llm wva.llmd.ai/exclude=true >/dev/null
eventually 20 "an excluded namespace has no number" metric_fails_with "is excluded by its annotation wva.llmd.ai/exclude"
kubectl annotate namespace llm wva.llmd.ai/exclude- >/dev/null
eventually 20 "it has a number again" value_is ">=" 1

kubectl -n "$release_namespace" delete configmap wva-saturation-scaling-config >/dev/null
install_chart
route_api_server_to "$wva_port"
