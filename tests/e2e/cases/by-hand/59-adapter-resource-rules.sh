# shellcheck shell=bash
# (59) The resourceRules of prometheus-adapter: the real adapter 0.12 and wva, started with --serve-resource-metrics, answer the same about pods and
# nodes. Then the chart gives wva the APIService of metrics.k8s.io: kubectl top prints both, and an HPA follows processor time.

series=$CLUSTER_DIR/series.yml rules=$CLUSTER_DIR/adapter-rules.yaml
usage=/apis/metrics.k8s.io/v1beta1
node=$(kubectl get nodes -o name | sort | head -n 1) node=${node#node/}
{
  printf 'groups:\n- name: series\n  interval: 2s\n  rules:\n'
  for pod in 0 1 2 3 4 5; do
    cat <<YAML
  - {record: container_cpu_usage_seconds_total, expr: time() * 0.3, labels: {namespace: llm, pod: shop-$pod, container: main}}
  - {record: container_cpu_usage_seconds_total, expr: time() * 0.1, labels: {namespace: llm, pod: shop-$pod, container: side}}
  - {record: container_memory_working_set_bytes, expr: vector(536870912), labels: {namespace: llm, pod: shop-$pod, container: main}}
  - {record: container_memory_working_set_bytes, expr: vector(1500), labels: {namespace: llm, pod: shop-$pod, container: side}}
YAML
  done
  cat <<YAML
  - {record: node_cpu_usage_seconds_total, expr: time() * 3.5, labels: {node: $node}}
  - {record: node_memory_working_set_bytes, expr: vector(8589934592.5), labels: {node: $node}}
YAML
} >"$series"
sed -i "1i rule_files: [$series]" "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP

# As its manifests have it, with rates that do not depend on the moment, and a short window: the HPA takes no sample of a pod that has been ready
# for less.
cat >"$rules" <<'YAML'
resourceRules:
  cpu:
    containerLabel: container
    containerQuery: round(sum by (<<.GroupBy>>) (irate(container_cpu_usage_seconds_total{<<.LabelMatchers>>,container!="",pod!=""}[4m])), 0.05)
    nodeQuery: round(sum by (<<.GroupBy>>) (irate(node_cpu_usage_seconds_total{<<.LabelMatchers>>}[4m])), 0.05)
    resources: {overrides: {namespace: {resource: namespace}, node: {resource: node}, pod: {resource: pod}}}
  memory:
    containerLabel: container
    containerQuery: sum by (<<.GroupBy>>) (container_memory_working_set_bytes{<<.LabelMatchers>>,container!="",pod!=""})
    nodeQuery: sum by (<<.GroupBy>>) (node_memory_working_set_bytes{<<.LabelMatchers>>})
    resources: {overrides: {node: {resource: node}, namespace: {resource: namespace}, pod: {resource: pod}}}
  window: 20s
YAML

kubectl apply -f - >/dev/null <<'YAML'
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: shop, namespace: llm}
spec:
  serviceName: shop
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop, tier: front}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: registry.k8s.io/pause, resources: {requests: {cpu: 150m}}}
      - {name: side, image: registry.k8s.io/pause, resources: {requests: {cpu: 50m}}}
YAML

. "$e2e/adapter.sh"
choose_port adapter_port
start_adapter "$rules"
stop wva-0
install_chart --set "prometheus.url=$PROMETHEUS_URL" --set adapterRules.configMap=rules --set apiService.resource.enabled=true
WVA_ARGS="--adapter-config $rules --metrics-relist-interval 5s --metrics-max-age 60s --serve-resource-metrics" baseline
trust_wva

ask() { ask_instance "$1" "$usage$2" --insecure -H 'X-Remote-Group: system:masters' "${@:3}"; }
# answer_of PORT PATH: the code, and of an answer the object without its times; the adapter lists containers in a random order.
answer_of() {
  ask "$1" "$2" --output "$CLUSTER_DIR/answer" --write-out '%{http_code} ' 2>/dev/null
  jq -c 'if .kind == "Status" then "error" else walk(if type == "object" then del(.creationTimestamp, .timestamp) else . end)
    | walk(if type == "object" and has("containers") then .containers |= sort_by(.name) else . end) end' "$CLUSTER_DIR/answer"
}
measures() { local list; list=$(answer_of "$1" /namespaces/llm/pods) && echo "$list" | cut -c 1-300 && [[ $list == *'"cpu":"300m"'*'"cpu":"300m"'* ]]; }
eventually 60 "the adapter measures both pods" measures "$adapter_port"
eventually 60 "and so does wva" measures "$wva_port"

: >"$CLUSTER_DIR/differences"
same=0
for path in "" /pods /nodes "/nodes/$node" /nodes/missing /namespaces/llm/pods /namespaces/llm/pods/shop-0 /namespaces/llm/pods/missing /namespaces/none/pods \
  "/namespaces/llm/pods?labelSelector=app%3Dshop" "/namespaces/llm/pods?labelSelector=app+in+(shop,x),tier" "/namespaces/llm/pods?labelSelector=app%3Dnone" \
  "/pods?labelSelector=app%3Dshop" "/pods?fieldSelector=metadata.name%3Dshop-1" "/nodes?labelSelector=kubernetes.io/hostname%3D$node" \
  "/nodes?labelSelector=none%3Dx" "/namespaces/llm/pods/shop-0?labelSelector=app%3Dnone" "/pods?labelSelector=a%20b" /services "/namespaces/llm/nodes"; do
  theirs=$(answer_of "$adapter_port" "$path") ours=$(answer_of "$wva_port" "$path")
  # shellcheck disable=SC2015
  [ "$theirs" = "$ours" ] && same=$((same + 1)) || echo "$path: adapter $theirs, wva $ours" >>"$CLUSTER_DIR/differences"
done
cat "$CLUSTER_DIR/differences"
assert_eq "answers that differ, beside $same that are the same" "$(wc -l <"$CLUSTER_DIR/differences")" 0

usage_available() { is "$(kubectl get apiservice v1beta1.metrics.k8s.io -o jsonpath='{.status.conditions[?(@.type=="Available")].status}') == True"; }
eventually 40 "the APIService of metrics.k8s.io is available" usage_available
top() { local text; text=$(kubectl top "$@" --no-headers) && echo "$text" && grep -Eq "$expected" <<<"$text"; }
expected='^shop-0 +400m +512Mi' eventually 20 "kubectl top prints pods" top pods -n llm -l app=shop
expected='^shop-1 +side +100m +0Mi' eventually 20 "and their containers" top pods -n llm --containers
expected="^$node +3500m .* 8192Mi" eventually 20 "and nodes" top nodes

kubectl apply -f - >/dev/null <<'YAML'
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: shop, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: shop}
  minReplicas: 1
  maxReplicas: 5
  metrics:
  - type: Resource
    resource: {name: cpu, target: {type: Utilization, averageUtilization: 100}}
YAML
replicas_are() { is "$(kubectl -n llm get statefulset shop -o jsonpath='{.spec.replicas}') >= $1"; }
eventually 90 "each pod uses 200 % of its request, and an HPA asks for 100 %: more replicas" replicas_are 4

stop adapter
kubectl -n llm delete hpa/shop statefulset/shop --wait=false >/dev/null
sed -i 1d "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP
stop wva-0
install_chart
baseline
