# shellcheck shell=bash
# What is measured and what it stands on: the bed, its objects and series, prometheus-adapter, the stub. Sourced by compare, after
# tests/e2e/actors.sh, which has wva and its chart.

stub_group=stub.wva.example
stub_path=/apis/$stub_group/v1beta1/namespaces/llm/wva_desired_replicas
exporter_pages=20

# set_up: a bed with the chart, and without what would change objects that `fill` makes.
set_up() {
  say "starting the control plane"
  "$e2e/bed" up "$BED" >/dev/null
  # shellcheck source=/dev/null
  . "$BED/env"
  local name
  for name in wva_port adapter_port stub_port exporter_port; do
    choose_port "$name"
  done
  install_chart
  point_at "$wva_port"
  kubectl get serviceaccount -n "$release_namespace" wva >/dev/null
  certificate adapter ca /CN=adapter "subjectAltName=DNS:adapter.$release_namespace.svc"
  certificate stub ca /CN=stub "subjectAltName=DNS:stub.$release_namespace.svc"
  user adapter-client /O=system:masters/CN=adapter # generous: its rights are not what is measured
  user reader /CN=reader
  grant
  "$e2e/bed" stop "$BED" kwok kube-scheduler kube-controller-manager
}

# Who asks through the aggregator, who scrapes wva, and the API of the stub.
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
  caBundle: $(base64 -w 0 "$BED/pki/ca.crt")
  service: {name: stub, namespace: $release_namespace, port: $stub_port}
YAML
  kubectl create token scraper -n "$release_namespace" --duration 2h >"$BED/scraper.token"
}

# scrape_all: Prometheus reads every page of the exporter, and wva as users have it scraped: its own `namespace` becomes
# `exported_namespace`, because the scrape has one too.
scrape_all() {
  cat >"$BED/prometheus.yml" <<YAML
global: {scrape_interval: $SCRAPE_INTERVAL, scrape_timeout: 10s}
scrape_configs:
- job_name: model-servers
  honor_labels: true # a page holds many pods: each series says which
  static_configs: [{targets: [$(seq -s ', ' -f '"%.0f"' 0 $((exporter_pages - 1)))]}]
  relabel_configs:
  - {source_labels: [__address__], target_label: instance}
  - {source_labels: [__address__], target_label: __metrics_path__, replacement: /pages/\$1}
  - {target_label: __address__, replacement: "127.0.0.1:$exporter_port"}
- job_name: wva
  scheme: https
  tls_config: {ca_file: $BED/wva-ca.crt, server_name: wva.$release_namespace.svc}
  authorization: {credentials_file: $BED/scraper.token}
  static_configs: [{targets: ["127.0.0.1:$wva_port"], labels: {namespace: $release_namespace, pod: wva-0}}]
YAML
  local pid
  read -r pid _ <"$BED/pids/prometheus"
  kill -HUP "$pid"
}

# start_exporter VARIANTS
start_exporter() {
  stop exporter
  spawn exporter "$EXAMPLES/exporter" --listen "127.0.0.1:$exporter_port" --variants "$1" --pages "$exporter_pages"
  await_http exporter 30 "http://127.0.0.1:$exporter_port/pages/0"
}

# start_adapter: after wva's series are in Prometheus, because it finds metrics only once a minute.
start_adapter() {
  cat >"$BED/adapter.yaml" <<'YAML'
externalRules:
- seriesQuery: 'wva_desired_replicas{variant_name!="",exported_namespace!=""}'
  resources:
    overrides:
      exported_namespace: {resource: namespace}
      variant_name: {resource: deployment}
  name: {matches: ^wva_desired_replicas, as: wva_desired_replicas}
  metricsQuery: wva_desired_replicas{<<.LabelMatchers>>}
YAML
  spawn adapter "$TOOLS/prometheus-adapter" --config "$BED/adapter.yaml" --prometheus-url "$PROMETHEUS_URL" --metrics-relist-interval 1m \
    --bind-address 127.0.0.1 --secure-port "$adapter_port" --tls-cert-file "$BED/pki/adapter.crt" --tls-private-key-file "$BED/pki/adapter.key" \
    --lister-kubeconfig "$BED/adapter-client.kubeconfig" --authentication-kubeconfig "$BED/adapter-client.kubeconfig" \
    --authorization-kubeconfig "$BED/adapter-client.kubeconfig"
  await_http adapter 60 --insecure "https://127.0.0.1:$adapter_port/healthz"
  await 60 "prometheus-adapter has a number" reads_once adapter
}

# start_stub: its answer is one of wva's, as the HPA controller gets it.
start_stub() {
  stop stub
  ask_instance "$wva_port" "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dv-0" \
    -H 'Accept: application/vnd.kubernetes.protobuf, */*' --output "$BED/answer" --dump-header "$BED/answer.head"
  cat "$BED/pki/front-proxy-ca.crt" "$BED/pki/ca.crt" >"$BED/pki/clients.crt"
  spawn stub "$EXAMPLES/stub" --listen "127.0.0.1:$stub_port" --cert "$BED/pki/stub.crt" --key "$BED/pki/stub.key" \
    --client-ca "$BED/pki/clients.crt" --group "$stub_group" --body "$BED/answer" \
    --content-type "$(tr -d '\r' <"$BED/answer.head" | sed -n 's/^[Cc]ontent-[Tt]ype: //p')"
  await 30 "the stub answers" reads_once stub
}

# ---- how each is asked: straight, as the front proxy does it, or through the API server

# peer SERVER: the client's arguments, one a line
peer() {
  local port=$1_port ca=$BED/pki/ca.crt
  case $1 in
    wva) ca=$BED/wva-ca.crt ;;
    stub) printf '%s\n' --path "$stub_path" ;;
    aggregated-*)
      [ "$1" != aggregated-stub ] || printf '%s\n' --path "$stub_path"
      printf '%s\n' --address "${API_URL#https://}" --name localhost --ca "$ca" \
        --cert "$BED/pki/reader.crt" --key "$BED/pki/reader.key" --user ''
      return
      ;;
  esac
  printf '%s\n' --address "127.0.0.1:${!port}" --name "$1.$release_namespace.svc" --ca "$ca" \
    --cert "$BED/pki/front-proxy-client.crt" --key "$BED/pki/front-proxy-client.key"
}

# client WHAT SERVER [ARGUMENT...]: runs the load client; prints its JSON
client() {
  local arguments
  mapfile -t arguments < <(peer "$2")
  "$EXAMPLES/load" "$1" "${arguments[@]}" --output json "${@:3}"
}

reads_once() { client reads "$1" --seconds 1 >/dev/null; }

# own_metrics: wva's, or nothing while it does not answer
own_metrics() { ask_instance "$wva_port" /metrics -H 'X-Remote-Group: system:masters' 2>/dev/null || true; }

# prometheus_says QUERY: the one value of an instant query, 0 when there is none
prometheus_says() {
  curl --fail --silent --show-error --get "$PROMETHEUS_URL/api/v1/query" --data-urlencode "query=$1" |
    sed -n 's/.*"value":\[[^"]*"\([^"]*\)".*/\1/p' | grep . || echo 0
}

# await SECONDS 'what' COMMAND...: until COMMAND succeeds; what it says last is told when it does not
await() {
  local seconds=$1 what=$2 deadline=$((SECONDS + $1)) said
  shift 2
  until said=$("$@" 2>&1); do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "$what: not within $seconds s; last seen: $said" >&2
      exit 1
    fi
    sleep 1
  done
}
