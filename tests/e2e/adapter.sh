# shellcheck shell=bash
# The real prometheus-adapter for cases that source this.

adapter_tools=$("$e2e/build-tools" prometheus-adapter)

# start_adapter FILE [ARGUMENT...]: with these rules, all rights, and a certificate that it makes itself unless arguments name one, on $adapter_port
start_adapter() {
  spawn adapter "$adapter_tools/prometheus-adapter" --config "$1" --prometheus-url "$PROMETHEUS_URL" --metrics-relist-interval 5s --metrics-max-age 60s \
    --bind-address 127.0.0.1 --secure-port "$adapter_port" --cert-dir "$CLUSTER_DIR/adapter" --lister-kubeconfig "$CLUSTER_DIR/admin.kubeconfig" \
    --authentication-kubeconfig "$CLUSTER_DIR/admin.kubeconfig" --authorization-kubeconfig "$CLUSTER_DIR/admin.kubeconfig" "${@:2}"
  await_http adapter 60 --insecure "https://127.0.0.1:$adapter_port/healthz"
}

# log_queries, log_no_queries: whether Prometheus logs its queries
log_queries() {
  rm -f "$CLUSTER_DIR/queries.log"
  sed -i "s|^global: {|&query_log_file: $CLUSTER_DIR/queries.log, |" "$CLUSTER_DIR/prometheus.yml"
  signal_to prometheus HUP
  eventually 20 "Prometheus logs its queries" test -s "$CLUSTER_DIR/queries.log"
}
log_no_queries() {
  sed -i "s|^global: {query_log_file: [^ ]* |global: {|" "$CLUSTER_DIR/prometheus.yml"
  signal_to prometheus HUP
}
# was_queried QUERY: yes or no, while queries are logged
was_queried() {
  local query
  query=$(jq -n --arg text "$1" '$text')
  if grep -qF -- "\"query\":$query" "$CLUSTER_DIR/queries.log"; then echo yes; else echo no; fi
}
