# shellcheck shell=bash
# (43) What `wva check` says of wrong autoscalers is what really happens: the number of llama stays 2, and HPAs of further Deployments, each wrong
# in another way, read it. The real HPA controller then does to each workload what the finding says.

follower_pods() { kubectl -n llm create deployment "$1" --image=registry.k8s.io/pause --replicas="$2" --dry-run=client -o json | jq -c .; }
# hpa_of NAME EXPRESSION: an HPA that follows the number of llama, after the jq expression about its spec; `number` is its metric
hpa_of() {
  kubectl create -f - --dry-run=client -o json <<YAML | jq -c "def number: .metrics[0].external; .spec |= ($2)"
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

# What is wrong: name, replicas at the start, and the HPA; then the finding, the replicas that result, and a condition of the HPA.
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

names=()
remember() { names+=("$name"); }
each_wrong remember
kubectl -n llm delete hpa "${names[@]}" rival >/dev/null
kubectl -n llm delete deployment "${names[@]}" >/dev/null
