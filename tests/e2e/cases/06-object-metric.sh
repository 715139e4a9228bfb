# shellcheck shell=bash
# (6) Another program owns the external metrics: HPAs of type Object follow the same number through a load step. One describes the
# VariantAutoscaling, the other the Deployment. Without a number, their conditions say why.

# The chart does not take over another program's group.
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta2.custom.metrics.k8s.io}
spec:
  group: custom.metrics.k8s.io
  version: v1beta2
  groupPriorityMinimum: 100
  versionPriority: 200
  insecureSkipTLSVerify: true
  service: {namespace: monitoring, name: prometheus-adapter}
YAML
output=$(install_chart --set apiService.custom.enabled=true 2>&1) && failed "the chart takes over the custom metrics of prometheus-adapter"
grep -q "already points at Service monitoring/prometheus-adapter.*apiService.custom.enabled=false" <<<"$output" || failed "helm prints: $output"
passed "the chart refuses to take over the custom metrics of prometheus-adapter, and says what to do"
kubectl delete apiservice v1beta2.custom.metrics.k8s.io >/dev/null

# As in a cluster where KEDA owns the external metrics APIService.
install_chart --set apiService.enabled=false --set apiService.custom.enabled=true
route_api_server_to "$wva_port"
eventually 40 "chart installed for another owner of the external metrics: both custom APIServices are available" custom_available

allow 2
set_load "$(calculate "3.3 * $pod_rps")" # above the capacity of 3 pods: the number is the maximum
kubectl -n llm patch hpa llama --type json -p '[{"op":"replace","path":"/spec/metrics","value":[{"type":"Object","object":{
  "describedObject":{"apiVersion":"llmd.ai/v1alpha1","kind":"VariantAutoscaling","name":"llama"},
  "metric":{"name":"wva_desired_replicas"},"target":{"type":"AverageValue","averageValue":"1"}}}]}]' >/dev/null
kubectl apply -f "$e2e/objects/follower.yaml" >/dev/null

both_at() {
  local llama follower number
  number=$(object_value v1beta2 variantautoscalings.llmd.ai) || { echo "$number"; return 1; }
  llama=$(replicas) follower=$(kubectl -n llm get deployment follower -o jsonpath='{.spec.replicas}')
  echo "metric $number, by VariantAutoscaling $llama, by Deployment $follower"
  [ "$number $llama $follower" = "$1 $1 $1" ]
}
eventually 45 "both HPAs follow the number" both_at 2
assert_eq "ScalingActive of the HPA by VariantAutoscaling" "$(scaling_active status)" True
same_everywhere() {
  local version resource actual=""
  for version in v1beta1 v1beta2; do
    for resource in variantautoscalings.llmd.ai deployments.apps; do
      actual+="$(object_value $version $resource) "
    done
  done
  echo "${actual}status $(va_column)"
  [ "$actual" = "$1 $1 $1 $1 " ] && [ "$(va_column)" = "$1" ]
}
eventually 5 "both versions give the number of the status for both objects" same_everywhere 2
eventually 0 "a namespace can be deleted" namespace_is_deleted

allow 3
eventually 45 "maximum raised to 3, which the load needs: both follow" both_at 3

kubectl -n llm patch va llama --type merge -p '{"spec":{"scaleTargetRef":{"name":"elsewhere"}}}' >/dev/null
eventually 20 "the variant targets another Deployment: the condition of the HPA by Deployment says so" \
  object_hpa_reports follower "the server could not find the metric wva_desired_replicas for deployments.apps llama: it is not the spec.scaleTargetRef of any"
eventually 5 "the condition of the other HPA says so too" object_hpa_reports llama "Deployment elsewhere"
assert_eq "the replicas stay" "$(replicas)" 3
kubectl apply -f "$e2e/objects/llama.yaml" >/dev/null # also restores the HPA of type External
kubectl -n llm delete -f "$e2e/objects/follower.yaml" >/dev/null

install_chart
route_api_server_to "$wva_port"
eventually 30 "the default chart again: the external metric is back" is_available
