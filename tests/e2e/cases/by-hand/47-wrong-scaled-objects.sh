# shellcheck shell=bash
# (47) What `wva check` says of wrong ScaledObjects is what the real KEDA (operator and metrics server) does: the number of llama stays 2, and
# ScaledObjects of further Deployments, each wrong in another way, read it, most of them from Prometheus. Then Prometheus loses it,
# and at last does not answer.

. "$e2e/keda.sh"

# follower_pods NAME REPLICAS: a Deployment. Only the pods of a variant are measured; the others just follow.
follower_pods() {
  kubectl -n llm create deployment "$1" --image=registry.k8s.io/pause --replicas="$2" --dry-run=client -o json | jq -c --arg name "$1" \
    '(select($name == "own" or $name == "sleepy") | .spec.template.metadata.labels) += {"llm-d.ai/model": $name, pool: "current"}'
}
# What the expressions of the table say. `silent` is a variant without a number, so that Prometheus has no series of it. In the namespace `far` there
# is another variant named llama, with the number 1.
# shellcheck disable=SC2016 # variables of jq
words='def trigger: .spec.triggers[0]; def data: trigger.metadata;
  def of($variant): data.query |= sub("llama"; $variant); def lost: of("silent"); def everywhere: data.query |= sub(",.*}"; "}");
  def nulls: del(data.ignoreNullValues); def cooldown: .spec.cooldownPeriod = 30;
  def least($replicas): .spec.minReplicaCount = $replicas; def idle($replicas): .spec.idleReplicaCount = $replicas;
  def fallback($replicas; $behavior): .spec.fallback = {failureThreshold: 1, replicas: $replicas, behavior: $behavior};
  def activation: data.query |= sub("llm"; "far") | data.activationThreshold = "1";
  def annotated($name; $value): .metadata.annotations["autoscaling.keda.sh/" + $name] = $value;'
# scaled_object NAME EXPRESSION: a ScaledObject that follows the number of llama, after the jq expression about it
scaled_object() {
  kubectl create -f - --dry-run=client -o json <<YAML | jq -c "$words $2"
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: $1, namespace: llm}
spec:
  scaleTargetRef: {name: $1}
  minReplicaCount: 1
  maxReplicaCount: 8
  pollingInterval: 5
  triggers:
  - type: prometheus
    metricType: AverageValue
    metadata:
      serverAddress: $PROMETHEUS_URL
      query: wva_desired_replicas{variant_name="llama",exported_namespace="llm"}
      threshold: "1"
      ignoreNullValues: "false"
  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 0}}}}
YAML
}
cron='{type: "cron", metadata: {timezone: "UTC", start: "0 0 * * *", end: "59 23 * * *", desiredReplicas: "5"}}'
# Processes run here instead of pods, so that the name is not that of the certificate.
api='{type: "metrics-api", metricType: "AverageValue", authenticationRef: {name: "reader"}, metadata: {format: "prometheus", authMode: "bearer",
  url: "https://localhost:'$wva_port'/metrics/decisions", unsafeSsl: "true", valueLocation: "wva_desired_replicas{namespace=\"llm\",variant_name=\"llama\"}",
  targetValue: "1"}}'

# What is wrong: name, replicas at the start, and the ScaledObject; then the finding, the replicas that result if they stay the same, a condition of
# it or its HPA, and of some the replicas that remain once Prometheus has lost the number.
wrong=(
  'right@1@least(0)@@2@ScalingActive=True@2'
  "by-api@1@trigger = $api | least(0)@@2@ScalingActive=True@2"
  'multiplied@2@trigger.metricType = "Value"@TargetTypeMultiplies@8@ScalingActive=True@'
  'ignored@1@data.metricType = "Value"@MetricTypeIgnored@2@ScalingActive=True@'
  'divided@2@data.threshold = "5"@NumberDivided@1@ScalingActive=True@'
  'of-ratio@3@data.query |= sub("replicas"; "ratio")@MetricNotDesired@1@ScalingActive=True@'
  'kept@3@lost@@3@FailedGetExternalMetric@'
  'hung@1@least(0) | cooldown@@2@ScalingActive=True@'
  'hung-too@1@least(0) | cooldown@@2@ScalingActive=True@'
  'held@1@least(0) | cooldown | fallback(2; "currentReplicas")@@2@ScalingActive=True@2'
  'null-zero@3@lost | nulls | fallback(6; "static")@MissingSeriesIsZero@1@ScalingActive=True@'
  'or-zero@3@lost | data.query += " or vector(0)"@MissingSeriesIsZero@1@ScalingActive=True@'
  'or-both@3@data.query += " or vector(0)"@MissingSeriesIsZero@3@FailedGetExternalMetric@'
  'unguarded@1@nulls | least(0) | cooldown@MissingSeriesIsZero@2@ScalingActive=True@0'
  'fallen@3@lost | fallback(1; "static")@FallbackHidesErrors@1@Fallback=True@'
  'lowered@3@lost | fallback(2; "currentReplicasIfLower")@FallbackHidesErrors@2@Fallback=True@'
  'fallen-zero@3@lost | least(0) | fallback(0; "static")@FallbackHidesErrors@1@Fallback=True@'
  'kept-zero@3@lost | least(0) | fallback(0; "currentReplicas")@FallbackHidesErrors@1@Fallback=True@'
  'static-zero@1@least(0) | fallback(0; "static")@FallbackHidesErrors@2@ScalingActive=True@1'
  'cooling-zero@1@least(0) | fallback(0; "currentReplicas")@FallbackHidesErrors@2@ScalingActive=True@2'
  'raised@3@lost | fallback(5; "currentReplicasIfHigher")@FallbackRaises@5@Fallback=True@'
  'to-most@3@lost | fallback(8; "static")@FallbackRaises@8@Fallback=True@'
  'hidden@1@activation | least(0)@ActivationHidesNumber@0@ScalerNotActive@'
  'hidden-idle@1@activation | idle(0)@ActivationHidesNumber@0@ScalerNotActive@'
  'own@1@of("own") | nulls | del(.spec.minReplicaCount) | cooldown@KedaMayGoToZero@1@ScalingActive=True@0'
  'idle@3@lost | nulls | least(2) | idle(0)@IdleReplicas@0@ScalerNotActive@'
  'idle-one@3@lost | nulls | least(2) | idle(1)@IdleReplicas@@ScalerNotActive@'
  'sleepy@1@of("sleepy") | least(0) | cooldown@CooldownDelaysZero@1@ScalerActive@'
  'formula@1@trigger.name = "n" | .spec.advanced.scalingModifiers = {formula: "n * 2", target: "1"}@FormulaReplacesNumber@4@ScalingActive=True@'
  "with-cron@1@.spec.triggers += [$cron]@OtherMetricsDecideToo@5@ScalingActive=True@"
  'with-failing@3@.spec.triggers += [trigger | .metadata.query = "absent_metric"]@OtherMetricsDecideToo@3@FailedGetExternalMetric@'
  'misspelt@3@of("lama")@QueryFindsNoVariant@3@FailedGetExternalMetric@'
  'misspelt-zero@3@of("lama") | nulls@QueryFindsNoVariant@1@ScalingActive=True@'
  'several@3@everywhere@QueryFindsSeveralVariants@3@FailedGetExternalMetric@'
  'summed@1@everywhere | data.query |= "sum(" + . + ")"@QueryFindsSeveralVariants@3@ScalingActive=True@'
  'other@1@.@FollowsAnotherVariant@2@ScalingActive=True@'
  "unread@1@.spec.triggers = [$cron]@NumberNotRead@5@ScalingActive=True@"
  'paused@3@annotated("paused"; "true")@Paused@3@Paused=True@'
  'paused-at@1@annotated("paused-replicas"; "4")@Paused@4@Paused=True@'
  'only-up@3@annotated("paused-scale-in"; "true")@Paused@3@ScalingActive=True@'
  'only-down@1@annotated("paused-scale-out"; "true")@Paused@1@ScalingActive=True@'
  'disputed@4@.@SeveralAutoscalers@4@AmbiguousSelector@'
  'tugged@1@least(0)@SeveralAutoscalers@@@'
)
each_wrong() {
  local row
  for row in "${wrong[@]}"; do IFS='@' read -r name start change reason result text after <<<"${row//$'\n'/ }" && "$@" || return; done
}
make() {
  follower_pods "$name" "$start"
  scaled_object "$name" "$change"
}
states=$CLUSTER_DIR/states
# has_happened: the workload has the replicas, and its ScaledObject or the HPA that KEDA made of it has the condition
has_happened() {
  local actual
  actual=$(jq -r --arg name "$name" '[.items[] | select(.metadata.name | . == $name or . == "keda-hpa-" + $name)] | map(.spec.replicas // empty,
    (.status.conditions[]? | "\(.type)=\(.status) \(.reason)")) | join("; ")' "$states")
  { [ -z "$result" ] || [[ "; $actual" == *"; $result; "* ]]; } && [[ $actual == *"$text"* ]] ||
    { echo "$name has $actual, expected $result and $text"; return 1; }
}
all_have_happened() {
  kubectl -n llm get deployments,hpa,scaledobjects -o json >"$states" && each_wrong has_happened && echo "${#wrong[@]} of ${#wrong[@]}"
}
# remains: the workload has the replicas of the last column, if there are any
remains() { [ -z "$after" ] || scale_is "$name" "$after"; }
all_remain() { each_wrong remains | tr '\n' ' ' && [ "${PIPESTATUS[0]}" = 0 ]; }
is_found() {
  [ -z "$reason" ] || jq -e --arg object "ScaledObject llm/$name" --arg reason "$reason" \
    '.findings[] | select(.object == $object and .reason == $reason)' "$CLUSTER_DIR/check.json" >/dev/null ||
    { echo "$name has no finding $reason"; return 1; }
}
all_are_found() { each_wrong is_found && echo "${#wrong[@]} of ${#wrong[@]}"; }
scale_of() { kubectl -n llm get deployment "$1" -o jsonpath='{.spec.replicas}'; }
scale_is() { local n; n=$(scale_of "$1") && echo "$1 $n" && [ "$n" = "$2" ]; }
# has_been NAME REPLICAS REPLICAS: the workload has had both since this was first asked
has_been() {
  scale_of "$1" | sed 's/$/\n/' >>"$CLUSTER_DIR/$1.seen"
  sort -nu "$CLUSTER_DIR/$1.seen" | tr '\n' ' '
  grep -qx "$2" "$CLUSTER_DIR/$1.seen" && grep -qx "$3" "$CLUSTER_DIR/$1.seen"
}
keda_says() { kubectl -n llm get events -o json | jq -r '.items[].message' | grep -F -- "$1" | tail -n 1; }
# series_is VARIANT NAMESPACE VALUE: what Prometheus has
series_is() {
  local actual
  actual=$(curl --fail --silent --show-error --get --data-urlencode "query=wva_desired_replicas{variant_name=\"$1\",exported_namespace=\"$2\"}" \
    "$PROMETHEUS_URL/api/v1/query" | jq -r '.data.result | map(.value[1]) | join(" ")')
  echo "${actual:-none}"
  [ "${actual:-none}" = "$3" ]
}
variant() {
  cat <<YAML
---
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: $1, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: $1}
  modelID: $1
  minReplicas: $2
  maxReplicas: 8
YAML
}

# Prometheus scrapes wva with the token of a reader, which KEDA's trigger metrics-api uses too.
kubectl -n llm create serviceaccount reader --dry-run=client -o yaml | kubectl apply -f - >/dev/null
readers="metrics.readers[0].name=reader,metrics.readers[0].namespace=llm"
install_chart --set "$readers"
route_api_server_to "$wva_port"
trust_wva
kubectl -n llm create token reader --duration 2h | tr -d '\n' >"$CLUSTER_DIR/reader.token"
cat >>"$CLUSTER_DIR/prometheus.yml" <<YAML
- job_name: wva
  scheme: https
  authorization: {credentials_file: $CLUSTER_DIR/reader.token}
  tls_config: {ca_file: $CLUSTER_DIR/wva-ca.crt, server_name: wva.$release_namespace.svc}
  static_configs: [{targets: ["127.0.0.1:$wva_port"], labels: {namespace: $release_namespace}}]
YAML
signal_to prometheus HUP

# The variants: silent has no workload, and sleepy an endpoint picker that would wake it.
kubectl create configmap wva-model-scale-to-zero-config -n "$release_namespace" --from-literal default=$'enable_scale_to_zero: true\nretention_period: 20s' \
  --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl apply -f "$e2e/objects/inference-pool-crds.yaml" >/dev/null
sed "s/\$FLEET_PORT/${FLEET_ADDR##*:}/" "$e2e/objects/pickers.yaml" | kubectl apply -f - >/dev/null
eventually 60 "the endpoint picker is Ready" pod_is_ready picker-0
put_on_loopback picker-0
curl --fail --silent --show-error --output /dev/null -X POST "http://$FLEET_ADDR/queue?namespace=llm&pod=picker-0&model=sleepy&waiting=0&era=current"
{ variant silent 1; variant own 1; variant other 1; variant unread 1; variant sleepy 0; } | kubectl apply -f - >/dev/null
sed 's/\(namespace\|  name\): llm$/\1: far/; s/model: llama/model: far/; s/modelID: llama/modelID: far/; /^apiVersion: autoscaling/,$d' "$e2e/objects/llama.yaml" |
  kubectl apply -f - >/dev/null
hold_at 2
eventually 60 "Prometheus has the number" series_is llama llm 2
eventually 60 "and that of another namespace" series_is llama far 1
eventually 10 "and none of the silent variant" series_is silent llm none

# KEDA. Of the two workloads with two autoscalers, one has an HPA besides, and the other a ScaledObject that reads no series.
start_keda
keda_owns_external_metrics --set "$readers"
kubectl -n llm create secret generic reader --from-file=token="$CLUSTER_DIR/reader.token" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl apply -f - >/dev/null <<YAML
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata: {name: reader, namespace: llm}
spec:
  secretTargetRef: [{parameter: token, name: reader, key: token}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: rival, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: disputed}
  maxReplicas: 8
  metrics: [{type: External, external: {metric: {name: wva_desired_replicas}, target: {type: AverageValue, averageValue: "1"}}}]
YAML
{ each_wrong make; scaled_object tugging '.spec.scaleTargetRef.name = "tugged" | lost | nulls | least(0)'; } | kubectl apply -f - >/dev/null
model=sleepy set_load "$(calculate "0.1 * $pod_rps")"
hpa_says() { kubectl -n llm get hpa "$1" -o jsonpath='{.status.conditions[*].reason}' | grep -F "$2"; }
eventually 60 "an HPA and a ScaledObject of one workload stop each other" hpa_says rival AmbiguousSelector
kubectl -n llm scale deployment disputed --replicas=4 >/dev/null
eventually 120 "to each workload happens what its finding says" all_have_happened
throughout 20 "and nothing else" all_have_happened
eventually 60 "two ScaledObjects of one workload: between 0 and 1 each sets its own" has_been tugged 0 1
eventually 60 "idle replicas above 0: KEDA sets them, and its HPA the minimum" has_been idle-one 1 2
eventually 0 "a fallback of 0: at the first error KEDA removes all" keda_says "llm/kept-zero from 3 to 0"
eventually 0 "and one returns with the fallback" keda_says "llm/kept-zero from 0 to 1"
"$WVA" check --kubeconfig "$KUBECONFIG" --output json >"$CLUSTER_DIR/check.json" || true
eventually 0 "each of them is found" all_are_found

model=sleepy set_load 0
eventually 90 "no request comes any longer: the number is 0" series_is sleepy llm 0
throughout 20 "for the cooldown the last replica stays" scale_is sleepy 1
eventually 30 "and then it goes" scale_is sleepy 0

eventually 0 "the number is still 2" series_is llama llm 2
echo expired >"$CLUSTER_DIR/reader.token"
eventually 10 "Prometheus loses the number, as its token is no longer valid" series_is llama llm none
eventually 15 "where that is 0, all replicas but one go at once" scale_is unguarded 1
throughout 20 "for the cooldown the last one stays" scale_is unguarded 1
eventually 30 "and then it goes, except where a missing series is an error" all_remain
throughout 20 "and that stays so" all_remain

# An error is no zero, and KEDA keeps the replicas; but where a poll fails while a failed read of its HPA discards the scalers, KEDA 2.21 takes the
# trigger for inactive without an error. If errors last a few seconds each, the two meet soon. With a minimum of 1 that does not matter.
kubectl -n llm create token reader --duration 2h | tr -d '\n' >"$CLUSTER_DIR/reader.token"
eventually 30 "Prometheus has the number again" series_is llama llm 2
eventually 60 "and KEDA follows it" scale_is hung 2
eventually 60 "as does the other" scale_is hung-too 2
trap 'signal_to prometheus CONT' EXIT
signal_to prometheus STOP
one_is_gone() { scale_is hung 0 || scale_is hung-too 0; }
throughout 25 "Prometheus does not answer: KEDA keeps the replicas for the cooldown" scale_is hung 2
eventually 300 "after it, KEDA removes all of one with the minimum 0, although the trigger fails" one_is_gone
eventually 0 "but not with a minimum of 1" scale_is ignored 2
eventually 0 "nor with a fallback to the current replicas" scale_is held 2
signal_to prometheus CONT

names=()
remember() { names+=("$name"); }
each_wrong remember
kubectl -n llm delete scaledobjects "${names[@]}" tugging >/dev/null
kubectl -n llm delete deployments "${names[@]}" >/dev/null
kubectl -n llm delete va silent own other unread sleepy >/dev/null
kubectl -n llm delete hpa/rival statefulset/picker statefulset/earlier-picker triggerauthentication/reader secret/reader serviceaccount/reader >/dev/null
kubectl delete namespace far --wait=false >/dev/null
kubectl -n "$release_namespace" delete configmap wva-model-scale-to-zero-config >/dev/null
give_back_external_metrics
stop keda-operator
stop keda-adapter
sed -i '/^- job_name: wva$/,$d' "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP
install_chart
