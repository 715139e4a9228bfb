# shellcheck shell=bash
# (31) Variants without a VariantAutoscaling: annotated HPAs as KServe and WVA's samples write them, which the real HPA controller follows, and a
# ScaledObject, whose definition is installed while wva runs. No KEDA runs: only the number of the ScaledObject is read.

load_of() { model=$1 set_load "$2"; }

# named_value_is NAME NUMBER [SELECTOR]: the number under this variant_name, with further requirements
named_value_is() {
  local body actual
  body=$(kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3D$1${3:-}" 2>&1) ||
    { echo "$body"; return 1; }
  assert_single "$body" || return
  actual=$(jq -r '.items[0].value' <<<"$body")
  echo "$actual"
  [ "$actual" = "$2" ]
}
assert_single() { [ "$(jq '.items | length' <<<"$1")" = 1 ] || { echo "not one item: $1"; return 1; }; }
# no_number_of NAME TEXT: there is none under this variant_name, and the message contains TEXT
no_number_of() {
  local body
  if body=$(kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3D$1" 2>&1); then
    echo "a number: $body"
    return 1
  fi
  echo "$body"
  [[ $body == *"$2"* ]]
}
# scaled_to DEPLOYMENT NUMBER: the HPA has set spec.replicas
scaled_to() { is "$(kubectl -n llm get deployment "$1" -o jsonpath='{.spec.replicas}') == $2"; }
# told OBJECT REASON TEXT: the object has an event with this reason, whose note contains TEXT
told() {
  local notes
  notes=$(kubectl -n llm get events --field-selector "involvedObject.name=$1,reason=$2" -o jsonpath='{.items[*].message}')
  echo "$notes"
  [[ $notes == *"$3"* ]]
}
series_of() { # NAME: lines of /metrics/decisions with this variant_name
  ask_instance "$wva_port" /metrics/decisions -H 'X-Remote-Group: system:masters' | grep -c "variant_name=\"$1\""
}

# first_number_of NAME: waits 90 s for a number under this variant_name, and prints the first one
first_number_of() {
  local body deadline=$((SECONDS + 90))
  until body=$(kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3D$1" 2>&1); do
    [ "$SECONDS" -lt "$deadline" ] || { echo "none: $body"; return; }
    sleep 0.2
  done
  jq -r '.items[0].value' <<<"$body"
}

mark_log wva-0
trust_wva
kubectl apply -f "$e2e/objects/annotated.yaml" >/dev/null
eventually 40 "KServe's HPA is found by its own name, without a namespace" named_value_is served-kserve-hpa 1
eventually 0 "and by that of its Deployment" named_value_is served 1 "%2Cexported_namespace%3Dllm"
eventually 40 "the HPA of WVA's samples is found by the name of its Deployment" named_value_is sample 1 "%2Cexported_namespace%3Dllm"
eventually 0 "and by its own name" named_value_is sample-hpa 1
eventually 30 "its model is the one that its pods serve" told sample-hpa ModelLearned \
  'the annotation llm-d.ai/model-id is not set: the model is "sample"'
assert_eq "series of the variant sample-hpa" "$(series_of sample-hpa)" 1
assert_eq "series under the name of its Deployment" "$(series_of sample || true)" 0
eventually 20 "KServe's HPA is told that its target type multiplies the number" told served-kserve-hpa TargetTypeMultiplies '"type":"AverageValue"'

load_of sample "$(calculate "3.3 * $pod_rps")"
load_of served "$(calculate "3.3 * $pod_rps")"
eventually 180 "load above the capacity of 3 pods, maximum 3: the HPA of the samples scales to 3" scaled_to sample 3
eventually 60 "and so does KServe's" scaled_to served 3
eventually 20 "the change is an event on the HPA" told sample-hpa DesiredReplicasChanged "→ 3"

# A migration that is half done: a VariantAutoscaling on the same Deployment.
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: half, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: sample}
  modelID: sample
  minReplicas: 1
  maxReplicas: 2
YAML
eventually 60 "a VariantAutoscaling with the maximum 2 on the same Deployment decides" named_value_is half 2
eventually 0 "the HPA's name finds its number" named_value_is sample-hpa 2
eventually 0 "and so does that of the Deployment" named_value_is sample 2
assert_eq "series of the HPA's name, which KEDA and adapters would read" "$(series_of sample-hpa)" 1
assert_eq "series of the VariantAutoscaling" "$(series_of half)" 1
eventually 60 "the HPA follows" scaled_to sample 2
eventually 20 "the HPA is told who decides" told sample-hpa TargetDecidedElsewhere "VariantAutoscaling llm/half decides about the same scale target"
kubectl -n llm delete va half >/dev/null
eventually 120 "it is deleted: the HPA's own settings count again" named_value_is sample-hpa 3
eventually 10 "the name of the VariantAutoscaling is gone" no_number_of half "has no variant half"

# A value that cannot be used.
eventually 30 "the HPA follows that number" scaled_to sample 3
kubectl -n llm annotate hpa sample-hpa llm-d.ai/variant-cost=cheap --overwrite >/dev/null
why_inactive() { # HPA TEXT: its condition says that it has no number because of TEXT
  local message
  message=$(kubectl -n llm get hpa "$1" -o jsonpath='{.status.conditions[?(@.type=="ScalingActive")].message}')
  echo "$message"
  [[ $message == *"$2"* ]]
}
eventually 20 "a wrong cost: no number" no_number_of sample-hpa invalid
eventually 20 "the HPA's condition says why" why_inactive sample-hpa "is not a cost"
eventually 20 "and so does an event" told sample-hpa InvalidConfiguration 'llm-d.ai/variant-cost'
throughout 10 "the replicas stay" scaled_to sample 3
kubectl -n llm annotate hpa sample-hpa llm-d.ai/variant-cost=10.0 --overwrite >/dev/null
eventually 30 "corrected: the number is back" named_value_is sample-hpa 3

assert_eq "lines in the log about KEDA, which is absent" "$(log_since wva-0 | grep -c ScaledObjects || true)" 0
stop wva-0 KILL
mark_log wva-0
start_wva wva-0 "$wva_port"
assert_eq "wva is restarted: its first number is the previous one" "$(first_number_of sample-hpa)" 3

# A ScaledObject, before and after its definition is installed.
assert_eq "lines in the log about KEDA, which is still absent" "$(log_since wva-0 | grep -c ScaledObjects || true)" 0
kubectl apply -f "$e2e/objects/scaled-object-crd.yaml" >/dev/null
kubectl wait --for=condition=Established crd/scaledobjects.keda.sh --timeout=30s >/dev/null
kubectl -n llm delete hpa served-kserve-hpa >/dev/null
kubectl apply -f "$e2e/objects/scaled-object.yaml" >/dev/null
eventually 60 "the definition is installed: the ScaledObject is found without a restart" named_value_is served-kserve-keda 3
assert_eq "its series for KEDA's triggers" "$(series_of served-kserve-keda)" 1
kubectl -n llm annotate scaledobject served-kserve-keda autoscaling.keda.sh/paused=true >/dev/null
eventually 30 "paused: an event says that KEDA does not apply the number" told served-kserve-keda Paused "KEDA does not apply the number"
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: plain, namespace: llm, annotations: {autoscaling.keda.sh/paused-replicas: "1"}}
spec:
  scaleTargetRef: {name: llama}
YAML
paused_is() { # TEXT: the condition of the VariantAutoscaling llama begins with it; none if it is empty
  local actual
  actual=$(kubectl -n llm get va llama -o jsonpath='{range .status.conditions[?(@.type=="Paused")]}{.status}: {.message}{end}') || return
  echo "${actual:-no condition}"
  if [ -n "$1" ]; then [[ $actual == "$1"* ]]; else [ -z "$actual" ]; fi
}
eventually 30 "a ScaledObject without other annotations is paused: the VariantAutoscaling of its Deployment says so" paused_is \
  "True: ScaledObject plain: KEDA does not apply the number, which is still computed, while the annotation autoscaling.keda.sh/paused-replicas is"
kubectl -n llm annotate scaledobject plain autoscaling.keda.sh/paused-replicas- >/dev/null
eventually 30 "resumed: it no longer does" paused_is ""
kubectl -n llm delete scaledobject plain >/dev/null
load_of served 0
eventually 180 "which is still computed: without load it is minReplicaCount" named_value_is served-kserve-keda 2
kubectl delete -f "$e2e/objects/scaled-object-crd.yaml" >/dev/null
eventually 180 "the definition is deleted: the variant is gone" no_number_of served-kserve-keda "has no variant served-kserve-keda"
eventually 0 "the others are not affected" named_value_is sample-hpa 3

load_of sample 0
eventually 180 "without load, the HPA of the samples scales down to 1" scaled_to sample 1
kubectl -n llm delete --ignore-not-found -f "$e2e/objects/annotated.yaml" >/dev/null
