# shellcheck shell=bash
# (49) The rules of prometheus-adapter: the real adapter 0.12 and wva read the same file and the same Prometheus, and answer the same, rule by
# rule and selector by selector, and list the same metrics. Then an HPA follows such a metric through wva's APIService.
#
# The rules are rewritten from those that the documentations of these exporters and of the adapter show; the series are made by recording rules.

series=$CLUSTER_DIR/series.yml rules=$CLUSTER_DIR/adapter-rules.yaml
cat >"$series" <<'YAML'
groups:
- name: series
  interval: 2s
  rules:
  - {record: rabbitmq_queue_messages_ready, expr: vector(7), labels: {namespace: llm, queue: jobs, vhost: /}}
  - {record: rabbitmq_queue_messages_ready, expr: vector(0.25), labels: {namespace: llm, queue: mail, vhost: /}}
  - {record: rabbitmq_queue_messages_ready, expr: vector(11), labels: {namespace: default, queue: jobs, vhost: /}}
  - {record: kafka_consumergroup_lag, expr: vector(120), labels: {namespace: llm, consumergroup: billing, topic: orders, partition: "0"}}
  - {record: kafka_consumergroup_lag, expr: vector(34), labels: {namespace: llm, consumergroup: billing, topic: orders, partition: "1"}}
  - {record: nginx_ingress_controller_requests, expr: time() * 3, labels: {exported_namespace: llm, ingress: front, status: "200"}}
  - {record: nginx_ingress_controller_requests, expr: time() / 5, labels: {exported_namespace: llm, ingress: front, status: "503"}}
  - {record: istio_requests_total, expr: time() * 12.5, labels: {destination_workload_namespace: llm, destination_workload: shop, reporter: destination}}
  - {record: celery_queue_length, expr: vector(3), labels: {queue_name: celery}}
  - {record: aws_sqs_approximate_number_of_messages_visible_average, expr: vector(42), labels: {dimension_QueueName: orders}}
  - {record: DCGM_FI_DEV_GPU_UTIL, expr: vector(73), labels: {exported_namespace: llm, exported_pod: a, gpu: "0"}}
  - {record: DCGM_FI_DEV_GPU_UTIL, expr: vector(50), labels: {exported_namespace: llm, exported_pod: b, gpu: "0"}}
  - {record: "vllm:num_requests_waiting", expr: vector(5), labels: {namespace: llm, model_name: m}}
  - {record: redis_key_size, expr: vector(9), labels: {namespace: llm, key: "queue:default"}}
  - {record: pg_stat_activity_count, expr: vector(17), labels: {namespace: llm, datname: app, state: active}}
  - {record: http_requests_total, expr: time() * 2, labels: {namespace: llm, pod: web-1}}
  - {record: sidekiq_queue_latency_seconds, expr: vector(-1.5), labels: {namespace: llm, queue: low}}
  - {record: temperature_celsius_total, expr: vector(1e-7), labels: {namespace: llm}}
  - {record: container_cpu_usage_seconds_total, expr: time(), labels: {namespace: llm, pod: web-1}}
YAML
sed -i "1i rule_files: [$series]" "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP

cat >"$rules" <<'YAML'
externalRules:
# rabbitmq_exporter
- seriesQuery: '{__name__=~"^rabbitmq_queue_.*",queue!=""}'
  resources: {overrides: {namespace: {resource: namespace}}}
  name: {matches: "^rabbitmq_(.*)$", as: "${1}"}
  metricsQuery: <<.Series>>{<<.LabelMatchers>>}
# kafka_exporter
- seriesQuery: kafka_consumergroup_lag
  resources: {template: <<.Resource>>}
  name: {as: kafka_lag_metric_sum}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (topic)
# ingress-nginx
- seriesQuery: 'nginx_ingress_controller_requests{ingress!=""}'
  resources: {template: exported_<<.Resource>>}
  name: {matches: "(.*)", as: "${1}_per_second"}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (ingress), 0.5)
# Istio
- seriesQuery: istio_requests_total
  resources: {overrides: {destination_workload_namespace: {resource: namespace}, destination_workload: {group: apps, resource: deployment}}}
  name: {matches: "^(.*)_total$"}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])), 0.5)
# celery-exporter, which has no namespace
- seriesQuery: celery_queue_length
  resources: {namespaced: false}
  metricsQuery: max(<<.Series>>{<<.LabelMatchers>>}) by (queue_name)
# yet-another-cloudwatch-exporter
- seriesQuery: '{__name__=~"^aws_sqs_.*"}'
  seriesFilters: [{is: visible}, {isNot: _not_visible}]
  resources: {namespaced: false}
  name: {matches: "^aws_(.*)_average$"}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>})
# dcgm-exporter
- seriesQuery: DCGM_FI_DEV_GPU_UTIL
  resources: {overrides: {exported_namespace: {resource: namespace}}}
  name: {as: gpu_util}
  metricsQuery: avg(<<.Series>>{<<.LabelMatchers>>})
# vLLM
- seriesQuery: '{__name__=~"^vllm:num_requests_.*"}'
  resources: {overrides: {namespace: {resource: namespace}}}
  name: {matches: "^vllm:(.*)$", as: "vllm_${1}"}
  metricsQuery: sum by (model_name) (<<.Series>>{<<.LabelMatchers>>})
# redis_exporter
- seriesQuery: redis_key_size{key!=""}
  resources: {template: <<.Resource>>}
  metricsQuery: scalar(sum(<<.Series>>{<<.LabelMatchers>>}))
# postgres_exporter
- seriesQuery: pg_stat_activity_count
  resources: {template: <<.Resource>>}
  name: {matches: "^pg_(?P<rest>.*)_count$", as: "${rest}"}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>,state="active"}) by (<<if .GroupBy>><<.GroupBy>><<else>>datname<<end>>)
# the adapter's walkthrough
- seriesQuery: '{__name__=~"^http_.*_total",namespace!=""}'
  resources: {template: <<.Resource>>}
  name: {matches: "^(.*)_total", as: "${1}_per_second"}
  metricsQuery: round(sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (pod), 0.5)
# the adapter's page about external metrics: the values of a selector, put into a query of their own
- seriesQuery: sidekiq_queue_latency_seconds
  resources: {template: <<.Resource>>}
  name: {as: sidekiq_latency}
  metricsQuery: '<<.Series>>{queue=~"<<index .LabelValuesByName "queue">>.*"<<range $key, $value := .LabelValuesByName>><<if ne $key "queue">>,<<$key>>=~"<<$value>>"<<end>><<end>>}'
# its sample configuration: a rule without resources, which fails where a namespace is asked for
- seriesQuery: '{__name__=~"^container_.*_total"}'
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>})
# two rules of one name: the last counts
- {seriesQuery: temperature_celsius_total, resources: {namespaced: false}, name: {as: temperature}, metricsQuery: "1 + <<.Series>>{<<.LabelMatchers>>}"}
- {seriesQuery: temperature_celsius_total, resources: {namespaced: false}, name: {as: temperature}, metricsQuery: "<<.Series>>{<<.LabelMatchers>>}"}
# a query that is none, and one that makes a matrix
- {seriesQuery: redis_key_size, resources: {namespaced: false}, name: {as: broken}, metricsQuery: "sum(<<.Series>>{"}
- {seriesQuery: redis_key_size, resources: {namespaced: false}, name: {as: matrix}, metricsQuery: "<<.Series>>[1m]"}
YAML
metrics=(queue_messages_ready kafka_lag_metric_sum nginx_ingress_controller_requests_per_second istio_requests celery_queue_length
  sqs_approximate_number_of_messages_visible gpu_util vllm_num_requests_waiting redis_key_size stat_activity http_requests_per_second
  sidekiq_latency container_cpu_usage_seconds_total temperature broken matrix missing)
selectors=("" "queue=jobs" "queue!=jobs" "queue in (jobs,mail)" "queue notin (jobs)" "queue" "!queue" "topic=orders,consumergroup in (billing,ads)"
  "queue_name=celery" "dimension_QueueName=orders" "model_name=m" "key" "datname=app" "pod in (web-1)" "gpu=0" "queue=lo" "none=x" "app.kubernetes.io/name=x"
  "status in (200,5.*)" "namespace=default")

. "$e2e/adapter.sh"
choose_port adapter_port
start_adapter "$rules"
stop wva-0
WVA_ARGS="--adapter-config $rules --metrics-relist-interval 5s --metrics-max-age 60s" baseline
trust_wva

ask() { ask_instance "$1" "$external_metrics$2" --insecure -H 'X-Remote-Group: system:masters' "${@:3}"; }
# listed PORT: the names of the metrics of rules
listed() { ask "$1" "" | jq -c '[.resources[].name | select(test("^(wva|inferno)_") | not)] | sort'; }
# The fleet has one more series of vLLM, and there is no metric `missing`.
lists_all() { local names; names=$(listed "$1") && echo "$names" && [ "$(jq length <<<"$names")" = ${#metrics[@]} ]; }
# answer_of PORT NAMESPACE METRIC SELECTOR: the code, and of an answer its items without their times
answer_of() {
  local selector
  selector=$(jq -rn --arg text "$4" '$text | @uri')
  ask "$1" "/namespaces/$2/$3?labelSelector=$selector" --output "$CLUSTER_DIR/answer" --write-out '%{http_code} ' 2>/dev/null
  jq -c 'if .kind == "Status" then "error" else [.items[] | del(.timestamp) | .metricLabels |= (. // {})] | sort_by(.metricLabels | tostring) end' "$CLUSTER_DIR/answer"
}
eventually 60 "the adapter lists the metrics" lists_all "$adapter_port"
eventually 60 "and so does wva" lists_all "$wva_port"
assert_eq "the lists" "$(listed "$wva_port")" "$(listed "$adapter_port")"

# Rates need a minute of samples, until which both answers depend on their moment.
sleep 60
: >"$CLUSTER_DIR/differences"
same=0 nan=0
for metric in "${metrics[@]}"; do
  for namespace in llm default none; do
    for selector in "${selectors[@]}"; do
      theirs=$(answer_of "$adapter_port" $namespace "$metric" "$selector") ours=$(answer_of "$wva_port" $namespace "$metric" "$selector")
      case "$theirs $ours" in
        "$ours $theirs") same=$((same + 1)) ;;
        # NaN, of which the adapter makes the smallest number, and wva an error.
        *-9223372036854775808m*' 500 "error"') nan=$((nan + 1)) ;;
        *) echo "$namespace/$metric{$selector}: adapter $theirs, wva $ours" >>"$CLUSTER_DIR/differences" ;;
      esac
    done
  done
done
cat "$CLUSTER_DIR/differences"
assert_eq "answers that differ, beside $same that are the same and $nan of a value that is none" "$(wc -l <"$CLUSTER_DIR/differences")" 0

# Reads that differ in the value of one label, within a second: wva shares a query where that is exact.
# answers_together PORT METRIC LABEL VALUES: the same as answer_of, for each value and for four that no series has
answers_together() {
  ask "$1" "/namespaces/llm/$2?labelSelector=$3%3D{none-1,none-2,none-3,none-4,$4}" --write-out '%{http_code}\n' 2>/dev/null |
    jq -c 'if type == "number" then . elif .kind == "Status" then "error" else [.items[] | del(.timestamp) | .metricLabels |= (. // {})] | sort_by(.metricLabels | tostring) end'
}
log_queries
while read -r metric label values; do
  assert_eq "$metric by $label, within a second" "$(answers_together "$wva_port" "$metric" "$label" "$values")" "$(answers_together "$adapter_port" "$metric" "$label" "$values")"
done <<'READS'
queue_messages_ready queue jobs,mail
kafka_lag_metric_sum topic orders,refunds
kafka_lag_metric_sum partition 0,1
nginx_ingress_controller_requests_per_second ingress front,back
nginx_ingress_controller_requests_per_second status 200,503
istio_requests destination_workload shop,none
celery_queue_length queue_name celery,other
gpu_util exported_pod a,b
vllm_num_requests_waiting model_name m,n
stat_activity datname app,other
http_requests_per_second pod web-1,web-2
sidekiq_latency queue low,lo
broken key a,b
READS
assert_eq "Prometheus was asked for all queues" "$(was_queried 'rabbitmq_queue_messages_ready{namespace="llm"}')" yes
assert_eq "and for all pods" "$(was_queried 'round(sum(rate(http_requests_total{namespace="llm"}[1m])) by (pod), 0.5)')" yes
assert_eq "but not for the average of all pods" "$(was_queried 'avg(DCGM_FI_DEV_GPU_UTIL{exported_namespace="llm"})')" no
log_no_queries

# An HPA follows a metric of a rule.
follower_is() { is "$(kubectl -n llm get deployment worker -o jsonpath='{.spec.replicas}') == $1"; }
kubectl -n llm create deployment worker --image=registry.k8s.io/pause --replicas=1 --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: worker, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: worker}
  minReplicas: 1
  maxReplicas: 9
  metrics:
  - type: External
    external: {metric: {name: queue_messages_ready, selector: {matchLabels: {queue: jobs}}}, target: {type: AverageValue, averageValue: "2"}}
YAML
eventually 60 "an HPA asks for two messages a replica, and 7 wait: 4 replicas" follower_is 4
sed -i 's/expr: vector(7)/expr: vector(11)/' "$series"
signal_to prometheus HUP
eventually 60 "11 wait: 6 replicas" follower_is 6
sed -i '0,/- seriesQuery/s//# read again\n- seriesQuery/; s/name: {matches: "^rabbitmq_(.\*)$", as: "${1}"}/name: {as: waiting}/' "$rules"
waiting_is_listed() { listed "$wva_port" | grep -F '"waiting"'; }
eventually 20 "a changed file counts without a restart" waiting_is_listed
throughout 10 "the HPA reads a metric that is gone, and keeps the replicas" follower_is 6

stop adapter
kubectl -n llm delete hpa,deployment worker --wait=false >/dev/null
sed -i 1d "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP
stop wva-0
baseline
