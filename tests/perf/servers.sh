# shellcheck shell=bash
# The measured servers and their environment: the test cluster, its objects and series, prometheus-adapter, the stub. Sourced by compare and scale, after
# tests/e2e/actors.sh, which starts wva and installs its chart.

stub_group=stub.wva.example
stub_path=/apis/$stub_group/v1beta1/namespaces/llm/wva_desired_replicas
exporter_pages=20

# set_up: creates a test cluster with the chart, without the controllers that would change the objects of `fill`.
set_up() {
  say "starting the control plane"
  "$e2e/cluster" up "$CLUSTER_DIR" >/dev/null
  # shellcheck source=/dev/null
  . "$CLUSTER_DIR/env"
  local name
  for name in wva_port adapter_port stub_port exporter_port; do
    choose_port "$name"
  done
  install_chart
  route_api_server_to "$wva_port"
  kubectl get serviceaccount -n "$release_namespace" wva >/dev/null
  certificate adapter ca /CN=adapter "subjectAltName=DNS:adapter.$release_namespace.svc"
  certificate stub ca /CN=stub "subjectAltName=DNS:stub.$release_namespace.svc"
  user adapter-client /O=system:masters/CN=adapter # all rights, because they are not measured
  user reader /CN=reader
  grant
  "$e2e/cluster" stop "$CLUSTER_DIR" kwok kube-scheduler kube-controller-manager
}

# The reader through the aggregator, the scraper of wva, and the stub's APIService.
grant() {
  kubectl apply -f - >/dev/null <<YAML
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: perf}
rules:
- {apiGroups: [external.metrics.k8s.io, $stub_group], resources: ["*"], verbs: [get, list]}
- {nonResourceURLs: [/metrics], verbs: [get]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: scraper, namespace: $release_namespace}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: perf}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: perf}
subjects:
- {kind: User, apiGroup: rbac.authorization.k8s.io, name: reader}
- {kind: ServiceAccount, name: scraper, namespace: $release_namespace}
---
apiVersion: v1
kind: Service
metadata: {name: stub, namespace: $release_namespace}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.$stub_group}
spec:
  group: $stub_group
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: $(base64 -w 0 "$CLUSTER_DIR/pki/ca.crt")
  service: {name: stub, namespace: $release_namespace, port: $stub_port}
YAML
  kubectl create token scraper -n "$release_namespace" --duration 2h >"$CLUSTER_DIR/scraper.token"
}

# scrape_all: Prometheus scrapes every page of the exporter, and wva as users do: wva's own label `namespace` becomes
# `exported_namespace`, because the target has one too.
scrape_all() {
  cat >"$CLUSTER_DIR/prometheus.yml" <<YAML
global: {scrape_interval: $SCRAPE_INTERVAL, scrape_timeout: 10s}
scrape_configs:
- job_name: model-servers
  honor_labels: true # a page has many pods, and each series names its pod
  static_configs: [{targets: [$(seq -s ', ' -f '"%.0f"' 0 $((exporter_pages - 1)))]}]
  relabel_configs:
  - {source_labels: [__address__], target_label: instance}
  - {source_labels: [__address__], target_label: __metrics_path__, replacement: /pages/\$1}
  - {target_label: __address__, replacement: "127.0.0.1:$exporter_port"}
- job_name: wva
  scheme: https
  tls_config: {ca_file: $CLUSTER_DIR/wva-ca.crt, server_name: wva.$release_namespace.svc}
  authorization: {credentials_file: $CLUSTER_DIR/scraper.token}
  static_configs: [{targets: ["127.0.0.1:$wva_port"], labels: {namespace: $release_namespace, pod: wva-0}}]
YAML
  local pid
  read -r pid _ <"$CLUSTER_DIR/pids/prometheus"
  kill -HUP "$pid"
}

# start_exporter VARIANTS
start_exporter() {
  stop exporter
  spawn exporter "$EXAMPLES/exporter" --listen "127.0.0.1:$exporter_port" --variants "$1" --pages "$exporter_pages"
  await_http exporter 30 "http://127.0.0.1:$exporter_port/pages/0"
}

# start_adapter: runs after wva's series are in Prometheus, because the adapter discovers metrics only once per minute.
start_adapter() {
  cat >"$CLUSTER_DIR/adapter.yaml" <<'YAML'
externalRules:
- seriesQuery: 'wva_desired_replicas{variant_name!="",exported_namespace!=""}'
  resources:
    overrides:
      exported_namespace: {resource: namespace}
      variant_name: {resource: deployment}
  name: {matches: ^wva_desired_replicas, as: wva_desired_replicas}
  metricsQuery: wva_desired_replicas{<<.LabelMatchers>>}
YAML
  spawn_adapter "$CLUSTER_DIR/adapter.yaml"
  await 60 "prometheus-adapter has a number" reads_once adapter
}

# spawn_adapter FILE [ARGUMENT...]: with these rules
spawn_adapter() {
  spawn adapter "$TOOLS/prometheus-adapter" --config "$1" --prometheus-url "$PROMETHEUS_URL" --metrics-relist-interval 1m \
    --bind-address 127.0.0.1 --secure-port "$adapter_port" --tls-cert-file "$CLUSTER_DIR/pki/adapter.crt" --tls-private-key-file "$CLUSTER_DIR/pki/adapter.key" \
    --lister-kubeconfig "$CLUSTER_DIR/adapter-client.kubeconfig" --authentication-kubeconfig "$CLUSTER_DIR/adapter-client.kubeconfig" \
    --authorization-kubeconfig "$CLUSTER_DIR/adapter-client.kubeconfig" "${@:2}"
  await_http adapter 60 --insecure "https://127.0.0.1:$adapter_port/healthz"
}

# start_stub: it answers with one of wva's answers, as the HPA controller gets it.
start_stub() {
  stop stub
  ask_instance "$wva_port" "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dv-0" \
    -H 'Accept: application/vnd.kubernetes.protobuf, */*' --output "$CLUSTER_DIR/answer" --dump-header "$CLUSTER_DIR/answer.head"
  cat "$CLUSTER_DIR/pki/front-proxy-ca.crt" "$CLUSTER_DIR/pki/ca.crt" >"$CLUSTER_DIR/pki/clients.crt"
  spawn stub "$EXAMPLES/stub" --listen "127.0.0.1:$stub_port" --cert "$CLUSTER_DIR/pki/stub.crt" --key "$CLUSTER_DIR/pki/stub.key" \
    --client-ca "$CLUSTER_DIR/pki/clients.crt" --group "$stub_group" --body "$CLUSTER_DIR/answer" \
    --content-type "$(tr -d '\r' <"$CLUSTER_DIR/answer.head" | sed -n 's/^[Cc]ontent-[Tt]ype: //p')"
  await 30 "the stub answers" reads_once stub
}

# ---- access to each server: directly, as the front proxy, or through the API server

# peer SERVER: the client's arguments, one per line
peer() {
  local port=$1_port ca=$CLUSTER_DIR/pki/ca.crt
  case $1 in
    wva) ca=$CLUSTER_DIR/wva-ca.crt ;;
    stub) printf '%s\n' --path "$stub_path" ;;
    aggregated-*)
      [ "$1" != aggregated-stub ] || printf '%s\n' --path "$stub_path"
      printf '%s\n' --address "${API_URL#https://}" --name localhost --ca "$ca" \
        --cert "$CLUSTER_DIR/pki/reader.crt" --key "$CLUSTER_DIR/pki/reader.key" --user ''
      return
      ;;
  esac
  printf '%s\n' --address "127.0.0.1:${!port}" --name "$1.$release_namespace.svc" --ca "$ca" \
    --cert "$CLUSTER_DIR/pki/front-proxy-client.crt" --key "$CLUSTER_DIR/pki/front-proxy-client.key"
}

# client WHAT SERVER [ARGUMENT...]: runs the load client; prints its JSON
client() {
  local arguments
  mapfile -t arguments < <(peer "$2")
  "$EXAMPLES/load" "$1" "${arguments[@]}" --output json "${@:3}"
}

reads_once() { client reads "$1" --seconds 1 >/dev/null; }

# own_metrics: wva's own metrics, or nothing while it does not answer
own_metrics() { ask_instance "$wva_port" /metrics -H 'X-Remote-Group: system:masters' --max-time 30 2>/dev/null || true; }

# prometheus_says QUERY: the single value of an instant query, or 0
prometheus_says() {
  curl --fail --silent --show-error --get "$PROMETHEUS_URL/api/v1/query" --data-urlencode "query=$1" |
    sed -n 's/.*"value":\[[^"]*"\([^"]*\)".*/\1/p' | grep . || echo 0
}

# await SECONDS 'what' COMMAND...: waits until COMMAND succeeds; prints its last output if it does not
await() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1)) output
  shift 2
  until output=$("$@" 2>&1); do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "$what: not within $seconds s; last output: $output" >&2
      exit 1
    fi
    sleep 1
  done
}
