# shellcheck shell=bash
# (37) `wva check` against a real API server: what is right has no error; wrong HPAs, missing rights, an older definition and files are
# found, with exit codes for CI. What really happens because of wrong HPAs is case 43.

# check [ARGUMENT...]: writes the JSON to $CLUSTER_DIR/check.json and prints the exit code. Prometheus is that of the test cluster.
check() {
  local status=0
  "$WVA" check --kubeconfig "$KUBECONFIG" --prometheus-url "$PROMETHEUS_URL" --output json "$@" >"$CLUSTER_DIR/check.json" 2>"$CLUSTER_DIR/check.err" || status=$?
  echo $status
}
# found OBJECT REASON [TEXT]: the last check has this finding, and its effect or what is set contains TEXT
found() {
  jq -e --arg object "$1" --arg reason "$2" --arg text "${3:-}" -r \
    '.findings[] | select(.object == $object and .reason == $reason and ((.set + " " + .effect) | contains($text))) | .severity + ": " + .set' \
    "$CLUSTER_DIR/check.json" || { jq -c '.findings[] | [.severity, .object, .reason, .set]' "$CLUSTER_DIR/check.json"; return 1; }
}
errors() { jq -r '[.findings[] | select(.severity == "error") | .object + " " + .reason] | join("; ")' "$CLUSTER_DIR/check.json"; }

allow 10
set_load "$(calculate "0.4 * $pod_rps")"
eventually 240 "load for one pod: the number is 1" value_is "==" 1

# What the chart and the samples make.
assert_eq "exit code for the test cluster" "$(check)" 0
assert_eq "errors" "$(errors)" ""
eventually 0 "pods that end at once are a warning" found "Deployment llm/llama" GracePeriodTooShort "terminationGracePeriodSeconds is 2"
assert_eq "exit code with --strict" "$(check --strict)" 1
assert_eq "seconds that a check takes are at most" "$(began=$SECONDS && check >/dev/null && [ $((SECONDS - began)) -le 10 ] && echo 10)" 10

# Two autoscalers, a selector that finds nothing, and a maximum below the variant's.
kubectl -n llm get hpa llama -o json | jq '.metadata = {name: "second", namespace: "llm"} | del(.status) | .spec.maxReplicas = 3
  | .spec.metrics[0].external.metric.selector.matchLabels = {variant_name: "lama"}' | kubectl create -f - >/dev/null
allow 10
assert_eq "exit code for a second HPA" "$(check)" 1
eventually 0 "both are named" found "HorizontalPodAutoscaler llm/llama" SeveralAutoscalers "llm/second"
eventually 0 "the selector" found "HorizontalPodAutoscaler llm/second" SelectsNoVariant "variant_name=lama"
eventually 0 "the maximum" found "HorizontalPodAutoscaler llm/second" MaximumBelowVariants "maxReplicas is 3"
eventually 0 "the fix of a finding can be applied" kubectl -n llm patch hpa second --type merge --dry-run=server \
  -p "$(jq -r '.findings[] | select(.reason == "MaximumBelowVariants") | .fix' "$CLUSTER_DIR/check.json")"
# configured_is TEXT: the condition AutoscalerConfigured of the variant contains it
configured_is() {
  local actual
  actual=$(kubectl -n llm get va llama -o jsonpath='{range .status.conditions[?(@.type=="AutoscalerConfigured")]}{.status} {.reason}: {.message}{end}')
  echo "$actual"
  [[ $actual == *"$1"* ]]
}
eventually 30 "the condition of the variant says so" configured_is "False SelectsNoVariant: HorizontalPodAutoscaler llm/second:"
eventually 0 "and what mends it" configured_is 'what mends it: {"spec":{"metrics":'
eventually 0 "and what else is wrong" configured_is "MaximumBelowVariants, NoPreStop, SeveralAutoscalers, ToleranceHidesChanges"
has_warning() { kubectl -n llm get events --field-selector reason="$1",involvedObject.name=llama,type=Warning -o jsonpath='{.items[*].message}' | grep .; }
eventually 30 "and an event" has_warning SelectsNoVariant
eventually 150 "each of the others has one too, of which six are written in a minute" has_warning MaximumBelowVariants
kubectl -n llm delete hpa second >/dev/null
eventually 30 "the HPA is gone: the other one follows the number, and what it ignores under the policy in force is a warning" \
  configured_is "True ToleranceHidesChanges: HorizontalPodAutoscaler llm/llama:"
eventually 0 "as is how pods end" configured_is "has more: GracePeriodTooShort, NoPreStop"
kubectl apply -f "$e2e/objects/vertical-pod-autoscaler-crd.yaml" >/dev/null
kubectl wait --for=condition=Established crd/verticalpodautoscalers.autoscaling.k8s.io --timeout=10s >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: llama, namespace: llm}
spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: llama}}
YAML
eventually 60 "a VerticalPodAutoscaler, whose definition came later, restarts the pods" \
  configured_is "True VerticalAutoscalerRestarts: VerticalPodAutoscaler llm/llama: it sizes Deployment llama"
kubectl -n llm patch verticalpodautoscaler llama --type merge -p '{"spec":{"updatePolicy":{"updateMode":"Off"}}}' >/dev/null
eventually 30 "what is mended makes room for the next" configured_is "True ToleranceHidesChanges"
eventually 30 "an event each: the tolerance" has_warning ToleranceHidesChanges
eventually 30 "and the restarts" has_warning VerticalAutoscalerRestarts
role=$(kubectl get clusterrole -l app.kubernetes.io/instance=wva -o name | grep ':wva$')
kubectl get "$role" -o json | jq 'del(.metadata.resourceVersion)' >"$CLUSTER_DIR/role.json"
jq '.rules |= map(select((.resources | index("verticalpodautoscalers")) | not))' "$CLUSTER_DIR/role.json" | kubectl replace -f - >/dev/null
mark_log wva-0
stop wva-0
baseline
eventually 60 "without the right to list them, everything else is as before" configured_is "True ToleranceHidesChanges"
eventually 10 "and the number is served" value_is ">=" 1
assert_eq "lines of the log about the missing right" "$(log_since wva-0 | grep -c 'VerticalPodAutoscalers' || true)" 1
kubectl replace -f "$CLUSTER_DIR/role.json" >/dev/null
kubectl delete crd verticalpodautoscalers.autoscaling.k8s.io >/dev/null

# Another program takes the external metrics over, as the API server shows it.
external=v1beta1.external.metrics.k8s.io
kubectl get apiservice "$external" -o json | jq 'del(.status, .metadata.uid, .metadata.resourceVersion)' >"$CLUSTER_DIR/apiservice.json"
jq '.spec.service = {namespace: "llm", name: "keda-metrics-apiserver", port: 443}' "$CLUSTER_DIR/apiservice.json" |
  kubectl replace -f - >/dev/null
eventually 30 "external metrics are another program's: variants of HPAs are told whose" \
  configured_is "True ApiServiceOfAnother: HorizontalPodAutoscaler llm/llama: it reads an external metric, and APIService $external points at Service llm/keda-metrics-apiserver"
kubectl replace -f "$CLUSTER_DIR/apiservice.json" >/dev/null
eventually 30 "they are ours again" configured_is "True ToleranceHidesChanges"
eventually 30 "and served" value_is ">=" 1

# Another autoscaler of the same workload, and none.
kubectl -n llm get hpa llama -o json | jq 'del(.metadata.uid, .metadata.resourceVersion, .status)' >"$CLUSTER_DIR/hpa.json"
jq '.metadata.name = "by-cpu"
  | .spec.metrics = [{type: "Resource", resource: {name: "cpu", target: {type: "Utilization", averageUtilization: 80}}}]' "$CLUSTER_DIR/hpa.json" |
  kubectl create -f - >/dev/null
eventually 30 "an HPA by CPU beside it, which reads no number" configured_is "False SeveralAutoscalers: HorizontalPodAutoscaler llm/by-cpu: "
kubectl -n llm delete hpa by-cpu llama >/dev/null
eventually 30 "and none at all" configured_is "True NoAutoscaler: VariantAutoscaling llm/llama: no HPA and no ScaledObject scales Deployment llama"
kubectl create -f "$CLUSTER_DIR/hpa.json" >/dev/null
eventually 30 "it is back" configured_is "True ToleranceHidesChanges"
! has_warning NoAutoscaler >/dev/null || failed "a variant without an HPA has an event: each new one would"

# The rights of the program, and of who runs the check.
jq '.rules |= map(select((.resources | index("pods")) | not))' "$CLUSTER_DIR/role.json" | kubectl replace -f - >/dev/null
assert_eq "exit code without the right to list pods" "$(check)" 1
eventually 0 "the right is named" found "ServiceAccount $release_namespace/wva" RightMissing "list, watch pods in all namespaces"
kubectl replace -f "$CLUSTER_DIR/role.json" >/dev/null
kubectl -n llm create serviceaccount reader --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl -n llm create rolebinding reader --clusterrole=view --serviceaccount=llm:reader --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubeconfig reader "{token: $(kubectl create token reader -n llm)}"
status=0
"$WVA" check --kubeconfig "$CLUSTER_DIR/reader.kubeconfig" -n llm --output json >"$CLUSTER_DIR/check.json" || status=$?
assert_eq "exit code for somebody who may view one namespace" "$status" 0
eventually 0 "what was not read is named" found nodes NotChecked "could not list nodes"

# An API server that does not answer, and files.
status=0
output=$("$WVA" check --kubeconfig <(sed "s|$API_URL|https://127.0.0.1:1|" "$KUBECONFIG") 2>&1) || status=$?
assert_eq "exit code without an API server" "$status" 2
[[ $output == *"the API server: "* ]] || failed "without an API server: $output"
status=0
output=$("$WVA" check --config "$e2e/objects/llama.yaml" --config "$root/manifests/samples") || status=$?
assert_eq "exit code for the files of the tests and the samples" "$status" 0
passed "its last line: $(tail -n 1 <<<"$output")"
status=0
output=$(sed 's/averageValue: "1"/averageValue: "3"/' "$e2e/objects/llama.yaml" | "$WVA" check --config -) || status=$?
assert_eq "exit code for a file with a wrong target" "$status" 1
[[ $output == *NumberDivided* ]] || failed "the file with a wrong target: $output"
passed "it is found before it is applied"

kubectl -n llm delete rolebinding,serviceaccount reader >/dev/null
kubectl apply -f "$e2e/objects/llama.yaml" >/dev/null
