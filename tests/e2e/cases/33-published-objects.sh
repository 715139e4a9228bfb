# shellcheck shell=bash
# (33) Objects as the pages about WVA print them: they apply with strict validation, and do what they say. Two of them name no model: it is learned from
# the metrics of their pods.
#
# The model is not scaled to zero here: that needs the queue of a scheduler, and no scheduler runs. Two things cannot be had as printed. The HPA has no maxReplicas, without which no HPA is valid; and its target type Value multiplies the number by the
# replicas, so that only a number of 1 is stable. An HPA on the CPU, which a page shows as the wrong way, has no name and no target.

# number_is NAMESPACE LABEL=VALUE NUMBER
number_is() {
  local actual
  actual=$(kubectl get --raw "$external_metrics/namespaces/$1/wva_desired_replicas?labelSelector=${2/=/%3D}" 2>&1) || { echo "$actual"; return 1; }
  actual=$(jq -r '[.items[].value] | join(" ")' <<<"$actual")
  echo "$actual"
  [ "$actual" = "$3" ]
}
# told NAMESPACE OBJECT REASON TEXT: the object has an event with this reason, whose note contains TEXT
told() {
  local notes
  notes=$(kubectl -n "$1" get events --field-selector "involvedObject.name=$2,reason=$3" -o jsonpath='{.items[*].message}')
  echo "$notes"
  [[ $notes == *"$4"* ]]
}
# ready_condition NAMESPACE NAME: reason and message of OptimizationReady
ready_condition() {
  kubectl -n "$1" get va "$2" -o jsonpath='{range .status.conditions[?(@.type=="OptimizationReady")]}{.reason}: {.message}{end}'
}
condition_has() { local actual; actual=$(ready_condition "$1" "$2"); echo "$actual"; [[ $actual == *"$3"* ]]; }
condition_lacks() { local actual; actual=$(ready_condition "$1" "$2"); echo "$actual"; [[ -n $actual && $actual != *"$3"* ]]; }
scaled_to() { is "$(kubectl get deployment -n default "$1" -o jsonpath='{.spec.replicas}') $2 $3"; }
load_of() { model=$1 set_load "$2"; }

mark_log wva-0
analyzer_is default
kubectl apply -f "$e2e/objects/published-servers.yaml" >/dev/null
assert_eq "what strict validation says of the VariantAutoscalings" \
  "$(kubectl apply --validate=strict --dry-run=server -o name -f "$e2e/objects/published.yaml" 2>&1 | sort | tr '\n' ' ')" \
  "variantautoscaling.llmd.ai/llama-8b-autoscaler variantautoscaling.llmd.ai/llama-autoscaler "
kubectl apply --validate=strict -f "$e2e/objects/published.yaml" >/dev/null
assert_eq "the minimum that the definition writes where none is printed" \
  "$(kubectl -n llm-inference get va llama-8b-autoscaler -o jsonpath='{.spec.minReplicas}')" ""

# Without a model, with a threshold and an idle time.
eventually 60 "the pods of llama-70b say which model it is" told default llama-autoscaler ModelLearned \
  'spec.modelID is not set: the model is "meta/llama-3.1-70b"'
eventually 30 "its number" number_is default variant_name=llama-autoscaler 1
eventually 60 "the threshold selects its analyzer, for this model only" told default llama-autoscaler SettingsInEffect \
  "analyzer saturation-percent, kvCacheThreshold 0.8"
eventually 0 "and the idle time counts" told default llama-autoscaler SettingsInEffect "scaled to zero when idle for 300 s"
load_of meta/llama-3.1-70b "$(calculate "2.3 * $pod_rps")"

# With a model, and nothing else.
eventually 60 "the model server of llm-inference has a number" number_is llm-inference variant_name=llama-8b-autoscaler 1
eventually 0 "and no settings of its own" condition_lacks llm-inference llama-8b-autoscaler kvCacheThreshold
kubectl -n llm-inference patch va llama-8b-autoscaler --type merge -p '{"spec":{"sloTtft":1000,"sloTpot":10}}' >/dev/null
eventually 60 "objectives, as integers" told llm-inference llama-8b-autoscaler SettingsInEffect \
  "objectives: time to first token 1000 ms, between tokens 10 ms"

# The HPA.
refusal=$(kubectl -n default apply --dry-run=server -f "$e2e/objects/published-hpa.yaml" 2>&1 || true)
[[ $refusal == *maxReplicas* ]] || failed "the HPA as printed: $refusal"
passed "Kubernetes refuses the HPA as printed: $refusal"
sed 's/^spec:$/&\n  maxReplicas: 10/' "$e2e/objects/published-hpa.yaml" | kubectl -n default apply --validate=strict -f - >/dev/null
hpa_reads() { kubectl -n default get hpa model-hpa -o jsonpath='{.status.conditions[?(@.type=="ScalingActive")].reason} {.status.currentMetrics[0].external.current.value}'; }
hpa_reads_is() { local actual; actual=$(hpa_reads); echo "$actual"; [ "$actual" = "$1" ]; }
eventually 60 "with a maximum it finds the number by the label variant" hpa_reads_is "ValidMetricFound 1"
throughout 10 "and keeps the replica" scaled_to vllm-model "==" 1

# Other pods serve another model.
eventually 30 "the model of vllm-model" told default model-name ModelLearned '"org/first"'
kubectl -n default patch deployment vllm-model --type merge \
  -p '{"spec":{"template":{"metadata":{"annotations":{"wva.test/model-id":"org/second"}}}}}' >/dev/null
second_model() { log_since wva-0 | grep -F 'VariantAutoscaling default/model-name' | grep -F '"org/second"' | cut -d ' ' -f 5- | grep .; }
eventually 90 "after a roll-out its pods serve another model, and the log says so" second_model
eventually 60 "and the number is that of this model" number_is default variant=model-name 1

eventually 150 "load above the capacity of a pod: the HPA scales llama-70b" scaled_to llama-70b ">=" 2
load_of meta/llama-3.1-70b 0
kubectl -n default patch va llama-autoscaler --type merge -p '{"spec":{"scaleToZero":{"idleTimeout":"20s"}}}' >/dev/null
other_idle_time() { log_since wva-0 | grep -F 'VariantAutoscaling default/llama-autoscaler' | grep -oF 'scaled to zero when idle for 20 s' | tail -n 1 | grep .; }
eventually 30 "another idle time is in force" other_idle_time
eventually 200 "idle: one replica stays, because no scheduler's queue is measured here" scaled_to llama-70b "==" 1
stop wva-0 KILL
start_wva wva-0 "$wva_port"
throughout 15 "restarted, its model is known at once" condition_lacks default llama-autoscaler ModelUnknown

# A variant that begins at zero.
kubectl -n default delete va model-name >/dev/null
kubectl -n default delete hpa model-hpa >/dev/null
kubectl -n default scale deployment vllm-model --replicas 0 >/dev/null
kubectl -n default create -f - >/dev/null <<'YAML'
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: vllm-model}
spec: {modelID: ""}
YAML
eventually 60 "no pod says which model it is: no number" condition_has default vllm-model \
  "ModelUnknown: the model is not known: spec.modelID is not set, and no Ready pod of Deployment vllm-model has metrics that name a model"
eventually 30 "and without a target it scales the Deployment of its name" told default vllm-model TargetByName "the Deployment of this object's name is scaled"

# The ConfigMap of WVA's chart 0.4.3.
mark_log wva-0
kubectl apply -f "$e2e/objects/published-config-map.yaml" >/dev/null
adopted() { log_since wva-0 | grep -F "ConfigMap wva-system/capacity-scaling-config: it decides about" | tail -n 1 | cut -c 1-200 | grep .; }
eventually 30 "its entries are in force under its name" adopted

kubectl delete -f "$e2e/objects/published-config-map.yaml" -f "$e2e/objects/published.yaml" -f "$e2e/objects/published-servers.yaml" \
  --ignore-not-found >/dev/null
kubectl -n default delete va vllm-model >/dev/null
