# shellcheck shell=bash
# (58) The rules of prometheus-adapter for metrics of objects: the real adapter 0.12 and wva read the same file, the same Prometheus and the same
# API server, list the same metrics, and answer the same, object by object and selector by selector, in both versions of the API. Then HPAs follow
# a metric of pods and one of an object through wva's APIService.
#
# The rules are rewritten from the adapter's own test configuration, its sample configuration, its walkthroughs, its chart's defaults, and the
# documentations of ingress-nginx, Istio, the NVIDIA and the kube-state-metrics exporters; the series are made by recording rules.

series=$CLUSTER_DIR/series.yml rules=$CLUSTER_DIR/adapter-rules.yaml
custom_metrics=/apis/custom.metrics.k8s.io
node=$(kubectl get nodes -o name | sort | head -n 1) node=${node#node/}
cat >"$series" <<YAML
groups:
- name: series
  interval: 2s
  rules:
  - {record: container_some_time_seconds_total, expr: time() * 0.5, labels: {namespace: llm, pod: shop-0, container: main}}
  - {record: container_some_time_seconds_total, expr: time() * 2, labels: {namespace: llm, pod: shop-1, container: main}}
  - {record: container_some_time_seconds_total, expr: time() * 9, labels: {namespace: llm, pod: shop-1, container: POD}}
  - {record: container_some_count_total, expr: time() * 4, labels: {namespace: llm, pod: shop-0, container: main}}
  - {record: container_some_usage, expr: vector(1048576), labels: {namespace: llm, pod: shop-0, container: main}}
  - {record: container_some_usage, expr: vector(524288), labels: {namespace: llm, pod: shop-0, container: side}}
  - {record: container_some_usage, expr: vector(7), labels: {namespace: llm, pod: other-0, container: main}}
  - {record: node_gigawatts, expr: vector(1.21), labels: {kube_node: $node}}
  - {record: service_proxy_packets, expr: vector(88), labels: {kube_service: shop, kube_namespace: llm}}
  - {record: ingress_hits_total, expr: time() * 3, labels: {kube_ingress: front, kube_service: shop, kube_pod: shop-0, kube_namespace: llm}}
  - {record: ingress_hits_total, expr: time() * 5, labels: {kube_ingress: front, kube_service: shop, kube_pod: shop-1, kube_namespace: llm}}
  - {record: volume_claims_total, expr: time() * 2, labels: {kube_persistentvolume: disk}}
  - {record: work_queue_wait_seconds_total, expr: time() * 0.25, labels: {kube_deployment: worker, kube_namespace: llm}}
  - {record: node_fan_seconds_total, expr: time() * 0.75, labels: {kube_node: $node}}
  - {record: http_requests_total, expr: time() * 2, labels: {kubernetes_namespace: llm, kubernetes_pod_name: shop-0, code: "200"}}
  - {record: http_requests_total, expr: time() * 6, labels: {kubernetes_namespace: llm, kubernetes_pod_name: shop-1, code: "500"}}
  - {record: nginx_ingress_controller_requests, expr: time() * 3, labels: {exported_namespace: llm, ingress: front, status: "200"}}
  - {record: istio_requests_total, expr: time() * 12.5, labels: {destination_workload_namespace: llm, destination_workload: worker, reporter: destination}}
  - {record: DCGM_FI_DEV_GPU_UTIL, expr: vector(73), labels: {exported_namespace: llm, exported_pod: shop-0, gpu: "0"}}
  - {record: DCGM_FI_DEV_GPU_UTIL, expr: vector(50), labels: {exported_namespace: llm, exported_pod: shop-0, gpu: "1"}}
  - {record: queue_depth, expr: vector(5), labels: {namespace: llm, pod: shop-0}}
  - {record: queue_depth, expr: vector(7), labels: {namespace: llm, pod: shop-1}}
  - {record: queue_depth, expr: vector(-2.5), labels: {namespace: llm, pod: shop-2}}
  - {record: queue_depth, expr: vector(9), labels: {namespace: default, pod: shop-0}}
  - {record: orphan_depth, expr: vector(4), labels: {pod: shop-0}}
  - {record: idle_ratio, expr: vector(0) / vector(0), labels: {namespace: llm, pod: shop-0}}
  - {record: cheddar, expr: vector(3), labels: {sharp: "true", topic: orders, namespace: llm}}
  - {record: ready_nodes, expr: vector(2), labels: {storageclass: fast, namespace: llm}}
YAML
sed -i "1i rule_files: [$series]" "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP

cat >"$rules" <<'YAML'
rules:
# the configuration of the adapter's own tests
- seriesQuery: '{__name__=~"^container_.*",container!="POD",namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {matches: "^container_(.*)_seconds_total$"}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>,container!="POD"}[1m])) by (<<.GroupBy>>), 0.25)
- seriesQuery: '{__name__=~"^container_.*",container!="POD",namespace!="",pod!=""}'
  seriesFilters: [{isNot: "^container_.*_seconds_total$"}]
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {matches: "^container_(.*)_total$"}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>,container!="POD"}[1m])) by (<<.GroupBy>>), 0.25)
- seriesQuery: '{__name__=~"^container_.*",container!="POD",namespace!="",pod!=""}'
  seriesFilters: [{isNot: "^container_.*_total$"}]
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  name: {matches: "^container_(.*)$"}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>,container!="POD"}) by (<<.GroupBy>>)
- seriesQuery: '{__name__=~"^(node|service|ingress|volume|work)_.*",__name__!~"^container_.*"}'
  seriesFilters: [{isNot: ".*_total$"}, {is: "gigawatts|packets"}]
  resources: {template: kube_<<.Resource>>}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
- seriesQuery: '{__name__=~"^(node|service|ingress|volume|work)_.*",__name__!~"^container_.*"}'
  seriesFilters: [{isNot: ".*_seconds_total"}, {is: "hits|claims"}]
  name: {matches: "^(.*)_total$"}
  resources: {template: kube_<<.Resource>>}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>), 0.25)
- seriesQuery: '{__name__=~"^(node|work)_.*"}'
  seriesFilters: [{is: "fan|wait"}]
  name: {matches: "^(.*)_seconds_total$"}
  resources: {template: kube_<<.Resource>>}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>), 0.25)
# its walkthrough of a configuration
- seriesQuery: 'http_requests_total{kubernetes_namespace!="",kubernetes_pod_name!=""}'
  resources: {overrides: {kubernetes_namespace: {resource: namespace}, kubernetes_pod_name: {resource: pod}}}
  name: {matches: "^(.*)_total", as: "${1}_per_second"}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>), 0.5)
# ingress-nginx: a metric of ingresses, in a group of its own
- seriesQuery: 'nginx_ingress_controller_requests{ingress!=""}'
  resources: {template: <<.Resource>>, overrides: {exported_namespace: {resource: namespace}}}
  name: {as: nginx_requests}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>), 0.5)
# Istio: of deployments
- seriesQuery: istio_requests_total
  resources: {overrides: {destination_workload_namespace: {resource: namespace}, destination_workload: {group: apps, resource: deployment}}}
  name: {matches: "^(.*)_total$"}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (<<.GroupBy>>), 0.5)
# dcgm-exporter
- seriesQuery: DCGM_FI_DEV_GPU_UTIL
  resources: {template: "exported_<<.Resource>>"}
  name: {as: gpu_util}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
# its sample configuration, with the generic form of labels
- seriesQuery: '{__name__=~"^(queue|idle)_.*",namespace!=""}'
  resources: {template: <<.Resource>>}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
# series without a namespace: listed, and not found in one
- seriesQuery: orphan_depth
  resources: {overrides: {pod: {resource: pod}}}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
# a query of its own, whose result names no object
- seriesQuery: 'cheddar{sharp="true"}'
  resources: {overrides: {namespace: {resource: namespace}}}
  name: {as: cheesy_goodness}
  metricsQuery: count(cheddar{sharp="true"})
# two rules of one name: the last counts; and two that make no query
- {seriesQuery: queue_depth, resources: {template: <<.Resource>>}, name: {as: depth}, metricsQuery: "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>) + 1"}
- {seriesQuery: queue_depth, resources: {template: <<.Resource>>}, name: {as: depth}, metricsQuery: "max(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"}
- {seriesQuery: queue_depth, resources: {template: <<.Resource>>}, name: {as: broken}, metricsQuery: "sum(<<.Series>>{"}
- {seriesQuery: queue_depth, resources: {template: <<.Resource>>}, name: {as: matrix}, metricsQuery: "<<.Series>>{<<.LabelMatchers>>}[1m]"}
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
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: registry.k8s.io/pause}]}
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: llm, labels: {app: shop}}
spec: {selector: {app: shop}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: worker, namespace: llm, labels: {app: worker}}
spec:
  replicas: 1
  selector: {matchLabels: {app: worker}}
  template:
    metadata: {labels: {app: worker}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: registry.k8s.io/pause}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front, namespace: llm, labels: {app: shop}}
spec: {defaultBackend: {service: {name: shop, port: {number: 80}}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk, labels: {app: shop}}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /tmp}}
YAML

. "$e2e/adapter.sh"
choose_port adapter_port
start_adapter "$rules"
stop wva-0
install_chart --set apiService.custom.enabled=true --set "prometheus.url=$PROMETHEUS_URL" --set adapterRules.configMap=rules \
  --set-json 'adapterRules.extraRules=[{"apiGroups":["apps"],"resources":["deployments"],"verbs":["list"]},{"apiGroups":["networking.k8s.io"],"resources":["ingresses"],"verbs":["list"]},{"apiGroups":[""],"resources":["persistentvolumes"],"verbs":["list"]}]'
WVA_ARGS="--adapter-config $rules --metrics-relist-interval 5s --metrics-max-age 60s" baseline
trust_wva
eventually 40 "both custom APIServices are available" custom_available

ask() { ask_instance "$1" "$custom_metrics/$2" --insecure -H 'X-Remote-Group: system:masters' "${@:3}"; }
# listed PORT VERSION: the metrics of rules, with whether they are in namespaces
listed() {
  ask "$1" "$2" | jq -c '[.resources[] | select(.name | test("/(wva|inferno)_") | not) | {name, namespaced, kind, verbs}] | sort_by(.name)'
}
lists_all() { local names; names=$(listed "$1" v1beta2) && jq -c 'map(.name)' <<<"$names" | cut -c 1-300 && [ "$(jq length <<<"$names")" = 37 ]; }
# answer_of PORT PATH: the code, and of an answer its items without their times. The adapter writes "/v1" in place of v1.
answer_of() {
  ask "$1" "$2" --output "$CLUSTER_DIR/answer" --write-out '%{http_code} ' 2>/dev/null
  jq -c 'if .kind == "Status" then "error" else [.items[] | del(.timestamp) | .describedObject.apiVersion |= ltrimstr("/")] end' "$CLUSTER_DIR/answer"
}
eventually 90 "the adapter lists the metrics" lists_all "$adapter_port"
eventually 60 "and so does wva" lists_all "$wva_port"
for version in v1beta1 v1beta2; do
  assert_eq "the lists of $version" "$(listed "$wva_port" $version)" "$(listed "$adapter_port" $version)"
done

# Rates need a minute of samples, until which both answers depend on their moment.
sleep 60
: >"$CLUSTER_DIR/differences"
same=0 nan=0 invalid=0
compare() {
  local theirs ours
  theirs=$(answer_of "$adapter_port" "$1") ours=$(answer_of "$wva_port" "$1")
  case "$theirs $ours" in
    "$ours $theirs") same=$((same + 1)) ;;
    # NaN, of which the adapter makes zero, and wva an error.
    *'"0"'*' 500 "error"') nan=$((nan + 1)) ;;
    # A selector of series that is none is an error of the server there, and one of the client here.
    '500 "error" 400 "error"') invalid=$((invalid + 1)) ;;
    *) echo "$1: adapter $theirs, wva $ours" >>"$CLUSTER_DIR/differences" ;;
  esac
}
pod_metrics=(some_time some_count some_usage ingress_hits http_requests_per_second gpu_util queue_depth idle_ratio orphan_depth depth broken matrix missing)
for version in v1beta1 v1beta2; do
  for metric in "${pod_metrics[@]}"; do
    for namespace in llm default none; do
      for name in shop-0 shop-1 other-0 missing; do compare "$version/namespaces/$namespace/pods/$name/$metric"; done
      for selector in "" "app%3Dshop" "app+in+(shop,worker)" "app%21%3Dshop,tier" "app%3Dnone"; do
        compare "$version/namespaces/$namespace/pods/*/$metric?labelSelector=$selector"
      done
      compare "$version/namespaces/$namespace/metrics/$metric"
    done
    for selector in "code%3D200" "code+in+(200,5.0)" "code+in+(200,5.*)" "code+notin+(200)" "code" "%21code" "none%3Dx" "gpu%3D1" "namespace%3Ddefault"; do
      compare "$version/namespaces/llm/pods/*/$metric?labelSelector=app%3Dshop&metricLabelSelector=$selector"
      compare "$version/namespaces/llm/pods/shop-0/$metric?metricLabelSelector=$selector"
    done
    for path in "namespaces/*/metrics/$metric" "pods/shop-0/$metric" "nodes/$node/$metric" "namespaces/llm/$metric"; do
      compare "$version/$path"
    done
  done
  for path in "nodes/$node/node_gigawatts" "nodes/*/node_gigawatts" "nodes/*/node_fan" "nodes/missing/node_fan" "node/$node/node_fan" \
    "nodes/*/node_fan?labelSelector=none%3Dx" "namespaces/llm/nodes/$node/node_fan" "persistentvolumes/disk/volume_claims" \
    "persistentvolumes/*/volume_claims?labelSelector=app%3Dshop" "namespaces/llm/services/shop/service_proxy_packets" \
    "namespaces/llm/services/*/service_proxy_packets?labelSelector=app%3Dshop" "namespaces/llm/service/shop/ingress_hits" \
    "namespaces/llm/services/shop/ingress_hits?metricLabelSelector=kube_pod%3Dshop-0" "namespaces/llm/ingresses.networking.k8s.io/front/ingress_hits" \
    "namespaces/llm/ingresses/*/ingress_hits" "namespaces/llm/ingress.networking/front/nginx_requests" "namespaces/llm/ingresses.networking.k8s.io/*/nginx_requests" \
    "namespaces/llm/deployments.apps/worker/istio_requests" "namespaces/llm/deployments/worker/istio_requests" "namespaces/llm/deployments.apps/*/istio_requests" \
    "namespaces/llm/deployments.apps/*/istio_requests?labelSelector=app%3Dworker" "namespaces/llm/deployment.apps/worker/work_queue_wait" \
    "namespaces/llm/deployments.extensions/worker/work_queue_wait" "namespaces/llm/statefulsets.apps/shop/work_queue_wait" \
    "namespaces/llm/metrics/istio_requests" "namespaces/*/metrics/depth" "namespaces/*/metrics/cheesy_goodness" "namespaces/llm/metrics/cheesy_goodness" \
    "namespaces/llm/brands/a/cheesy_goodness" "namespaces/llm/pods/*/queue_depth?labelSelector=app%20shop" \
    "namespaces/llm/pods/*/queue_depth?metricLabelSelector=a%20b"; do
    compare "$version/$path"
  done
done
cat "$CLUSTER_DIR/differences"
assert_eq "answers that differ, beside $same that are the same, $nan of a value that is none and $invalid of selectors that are none" "$(wc -l <"$CLUSTER_DIR/differences")" 0

# Reads of several objects by name or by a selector, within a second: wva shares a query, and a list, where that is exact.
# answers_together PORT PATHS: the same as answer_of, for each path
answers_together() {
  ask "$1" "v1beta2/$2" --write-out '%{http_code}\n' 2>/dev/null |
    jq -c 'if type == "number" then . elif .kind == "Status" then "error" else [.items[] | del(.timestamp) | .describedObject.apiVersion |= ltrimstr("/")] end'
}
log_queries
while read -r path metric names; do
  paths="$path/{none-1,none-2,none-3,none-4,$names}/$metric"
  assert_eq "$metric of $path, within a second" "$(answers_together "$wva_port" "$paths")" "$(answers_together "$adapter_port" "$paths")"
done <<'READS'
namespaces/llm/pods some_time shop-0,shop-1,other-0
namespaces/llm/pods some_count shop-0,shop-1
namespaces/llm/pods some_usage shop-0,shop-1,other-0
namespaces/llm/pods http_requests_per_second shop-0,shop-1
namespaces/llm/pods gpu_util shop-0,shop-1
namespaces/llm/pods queue_depth shop-0,shop-1,shop-2
namespaces/default/pods queue_depth shop-0,shop-1,shop-2
namespaces/llm/pods broken shop-0,shop-1
namespaces/llm/services ingress_hits shop,other
namespaces/llm/deployments.apps istio_requests worker,other
nodes node_gigawatts cpu-0,gpu-0
READS
for metric in some_time some_usage queue_depth http_requests_per_second; do
  paths=none-1/$metric,none-2/$metric,none-3/$metric,none-4/$metric
  for selector in a b c d app%3Dnone app%3Dshop "app+in+(shop%2Cworker)" app%21%3Dshop ""; do paths+=",*/$metric?labelSelector=$selector"; done
  paths="namespaces/llm/pods/{$paths}"
  assert_eq "$metric of selected pods, within a second" "$(answers_together "$wva_port" "$paths")" "$(answers_together "$adapter_port" "$paths")"
done
assert_eq "Prometheus was asked for all pods" "$(was_queried 'sum(queue_depth{namespace="llm",}) by (pod)')" yes
assert_eq "of another namespace too" "$(was_queried 'sum(queue_depth{namespace="default",}) by (pod)')" yes
assert_eq "and for all nodes" "$(was_queried 'sum(node_gigawatts{}) by (kube_node)')" yes
log_no_queries

# HPAs follow a metric of pods, and one of a Service.
replicas_are() { is "$(kubectl -n llm get "$1" -o jsonpath='{.spec.replicas}') == $2"; }
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: shop, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: shop}
  minReplicas: 1
  maxReplicas: 9
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  metrics:
  - type: Pods
    pods: {metric: {name: queue_depth}, target: {type: AverageValue, averageValue: "4"}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: worker, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: worker}
  minReplicas: 1
  maxReplicas: 9
  metrics:
  - type: Object
    object:
      describedObject: {apiVersion: v1, kind: Service, name: shop}
      metric: {name: service_proxy_packets}
      target: {type: AverageValue, averageValue: "22"}
YAML
eventually 60 "an HPA asks for a depth of 4 a pod, and two have 5 and 7: 3 replicas" replicas_are statefulset/shop 3
eventually 60 "another one asks for 22 packets a replica, and the Service has 88: 4 replicas" replicas_are deployment/worker 4
sed -i 's/expr: vector(88)/expr: vector(132)/' "$series"
signal_to prometheus HUP
eventually 60 "132 packets: 6 replicas" replicas_are deployment/worker 6
sed -i '/service_proxy_packets/d' "$series"
signal_to prometheus HUP
throughout 20 "the metric is gone, and the HPA keeps the replicas" replicas_are deployment/worker 6

stop adapter
kubectl -n llm delete hpa/shop hpa/worker statefulset/shop deployment/worker service/shop ingress/front --wait=false >/dev/null
kubectl delete persistentvolume disk --wait=false >/dev/null
sed -i 1d "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP
stop wva-0
install_chart
baseline
