# shellcheck shell=bash
# (43) What `wva check` says of wrong autoscalers is what really happens: the number of llama stays 2, and HPAs of further Deployments, each wrong
# in another way, read it. The real HPA controller then does to each workload what the finding says.

# These are of variants of their own, so their pods are measured.
follower_pods() {
  kubectl -n llm create deployment "$1" --image=registry.k8s.io/pause --replicas="$2" --dry-run=client -o json |
    jq -c 'if .metadata.name | IN("single", "kept", "stuck") then .spec.template.metadata.labels["llm-d.ai/model"] = .metadata.name else . end'
}
# hpa_of NAME EXPRESSION: an HPA that follows the number of llama, after the jq expression about its spec; `number` is its metric, and `both`
# changes it twice: a pipe separates the columns of the table
hpa_of() {
  kubectl create -f - --dry-run=client -o json <<YAML | jq -c "def number: .metrics[0].external; def both(a; b): a | b; .spec |= ($2)"
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: $1, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: $1}
  minReplicas: 1
  maxReplicas: 8
  metrics:
  - type: External
    external:
      metric: {name: wva_desired_replicas, selector: {matchLabels: {variant_name: llama}}}
      target: {type: AverageValue, averageValue: "1"}
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
YAML
}
cpu='{type: "Resource", resource: {name: "cpu", target: {type: "Utilization", averageUtilization: 80}}}'

# What is wrong: name, replicas at the start, and the HPA; then the finding, the replicas that result, and a condition of the HPA. `tolerant` and
# `slow-up` divide the number by less than 1, so that 11 and 8 replicas are wanted. By the default policies 1 replica becomes 5, and then 10.
wrong=(
  'multiplied|2|number.target = {type: "Value", value: "1"}|TargetTypeMultiplies|8|ScalingActive=True'
  'divided|2|number.target.averageValue = "2"|NumberDivided|1|ScalingActive=True'
  'misspelt|3|number.metric.name = "wva_desired_replica"|MetricUnknown|3|FailedGetExternalMetric'
  'of-pods|3|.metrics = [{type: "Pods", pods: {metric: {name: "wva_desired_replicas"}, target: {type: "AverageValue", averageValue: "1"}}}]|MetricTypeWrong|3|FailedGetPodsMetric'
  'by-ratio|3|number.metric.name = "wva_desired_ratio"|MetricNotDesired|1|ScalingActive=True'
  "with-cpu|3|.metrics += [$cpu]|OtherMetricsDecideToo|3|FailedGetResourceMetric"
  'lost|3|number.metric.selector.matchLabels.variant_name = "lama"|SelectsNoVariant|3|FailedGetExternalMetric'
  'capped|1|.maxReplicas = 1||1|TooManyReplicas'
  'floored|1|.minReplicas = 4||4|TooFewReplicas'
  'delayed|3|.behavior.scaleDown.stabilizationWindowSeconds = 300||3|ScaleDownStabilized'
  'late|1|.behavior.scaleUp.stabilizationWindowSeconds = 300||1|ScaleUpStabilized'
  'only-up|3|.behavior.scaleDown.selectPolicy = "Disabled"|RemovalsDisabled|3|ScalingActive=True'
  'only-down|1|.behavior.scaleUp.selectPolicy = "Disabled"|AdditionsDisabled|1|ScalingActive=True'
  'disputed|4|.|SeveralAutoscalers|4|AmbiguousSelector'
  'summed|1|number.metric.selector = {matchExpressions: [{key: "variant_name", operator: "In", values: ["llama", "single"]}]}|SelectsSeveralVariants|5|ScalingActive=True'
  'single|3|.|FollowsAnotherVariant|2|ScalingActive=True'
  'tolerant|1|both(number.target.averageValue = "182m"; .maxReplicas = 12)|ToleranceHidesOne|10|ScalingActive=True'
  'slow-up|1|both(number.target.averageValue = "250m"; .behavior.scaleUp.policies = [{type: "Pods", value: 1, periodSeconds: 300}])|AdditionsSlow|2|ScaleUpLimit'
  'slow-down|6|.behavior.scaleDown.policies = [{type: "Pods", value: 1, periodSeconds: 600}]|RemovalsSlow|5|ScaleDownLimit'
)
each_wrong() {
  local row
  for row in "${wrong[@]}"; do IFS='|' read -r name start change reason result text <<<"$row" && "$@" || return; done
}
make() {
  follower_pods "$name" "$start"
  hpa_of "$name" "$change"
}
states=$CLUSTER_DIR/states
# has_happened: the workload has the replicas, and its HPA the condition
has_happened() {
  local actual
  actual=$(jq -r --arg name "$name" '[.items[] | select(.metadata.name == $name)] | map(.spec.replicas // empty,
    (.status.conditions[]? | "\(.type)=\(.status) \(.reason)")) | join("; ")' "$states")
  [[ "; $actual" == *"; $result; "* && $actual == *"$text"* ]] || { echo "$name has $actual, expected $result and $text"; return 1; }
}
all_have_happened() {
  kubectl -n llm get deployments,hpa -o json >"$states" && each_wrong has_happened && echo "${#wrong[@]} of ${#wrong[@]}"
}
# is_found: `wva check` has the finding; those about a variant's bounds or policy are about HPAs of its own workload
is_found() {
  [ -z "$reason" ] || jq -e --arg object "HorizontalPodAutoscaler llm/$name" --arg reason "$reason" \
    '.findings[] | select(.object == $object and .reason == $reason)' "$CLUSTER_DIR/check.json" >/dev/null || { echo "$name has no finding $reason"; return 1; }
}

# variant_of NAME MIN MAX: a variant of the Deployment NAME, which something else would wake
variant_of() {
  cat <<YAML
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: $1, namespace: llm, annotations: {wva.llmd.ai/woken-by: the test}}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: $1}, modelID: $1, minReplicas: $2, maxReplicas: $3}
---
YAML
}
number_of() { kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3D$1" | jq -r '.items[0].value'; }
number_is() { local n; n=$(number_of "$1" 2>&1) || { echo "$n"; return 1; }; echo "$n"; [ "$n" = "$2" ]; }
scale_is() { local n; n=$(kubectl -n llm get deployment "$1" -o jsonpath='{.spec.replicas}') && echo "$n" && [ "$n" = "$2" ]; }

# Idle models, while the load of llama is set up.
kubectl create configmap wva-model-scale-to-zero-config -n "$release_namespace" --from-literal default=$'enable_scale_to_zero: true\nretention_period: 20s' \
  --dry-run=client -o yaml | kubectl apply -f - >/dev/null
own='number.metric.selector.matchLabels.variant_name = .scaleTargetRef.name'
percent='.behavior.scaleUp.policies = [{type: "Percent", value: 100, periodSeconds: 15}]'
{
  follower_pods kept 1
  follower_pods stuck 1
  hpa_of kept "$own"
  hpa_of stuck "both($own; both(.minReplicas = 0; $percent))"
} | kubectl apply -f - >/dev/null
{ variant_of kept 0 4; variant_of stuck 0 4; variant_of single 3 3; } | kubectl apply -f - >/dev/null

hold_at 2
{ each_wrong make; hpa_of disputed '.maxReplicas = 4' | jq -c '.metadata.name = "rival"'; } | kubectl apply -f - >/dev/null
hpa_says() { kubectl -n llm get hpa "$1" -o jsonpath='{.status.conditions[*].reason}' | grep -F "$2"; }
eventually 30 "the two HPAs of one workload stop each other" hpa_says disputed AmbiguousSelector
kubectl -n llm scale deployment disputed --replicas=4 >/dev/null
eventually 240 "to each workload happens what its finding says" all_have_happened
throughout 10 "and nothing else" all_have_happened
eventually 0 "the number is still 2" value_is "==" 2
"$WVA" check --kubeconfig "$KUBECONFIG" -n llm --output json >"$CLUSTER_DIR/check.json" || true
eventually 0 "each of them is found" each_wrong is_found

# Zero.
for name in kept stuck; do eventually 120 "the idle model $name: the number is 0" number_is $name 0; done
eventually 30 "one HPA goes to zero" scale_is stuck 0
throughout 10 "another one, with minReplicas 1, does not" scale_is kept 1
name=kept reason=MinimumForbidsZero is_found || failed "it is not found"
name=stuck reason=CannotLeaveZero is_found || failed "it is not found that a percentage of zero is zero"
passed "both are found"
kubectl -n llm patch va stuck --type merge -p '{"spec":{"minReplicas":1}}' >/dev/null
eventually 30 "a replica is needed again: the number is 1" number_is stuck 1
throughout 15 "and a percentage of zero is zero" scale_is stuck 0
eventually 0 "its HPA knows that one is wanted" hpa_says stuck ScaleUpLimit

names=(kept stuck)
remember() { names+=("$name"); }
each_wrong remember
kubectl -n llm delete hpa "${names[@]}" rival >/dev/null
kubectl -n llm delete va kept stuck single >/dev/null
kubectl -n llm delete deployment "${names[@]}" >/dev/null
kubectl -n "$release_namespace" delete configmap wva-model-scale-to-zero-config >/dev/null
