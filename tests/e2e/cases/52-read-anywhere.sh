# shellcheck shell=bash
# (52) One decision, read in every way at one moment: External metric, Object metric, KEDA's external scaler over gRPC, Prometheus, the page for KEDA's
# metrics-api trigger, OTLP, and the status. All show the same number, up and down, and say how old the measurements are that it rests on.

choose_port scaler_port
receiver=$PROMETHEUS_URL/api/v1/otlp/v1/metrics # Prometheus is a receiver of OTLP too
stop wva-0
install_chart --set apiService.custom.enabled=true --set externalScaler.enabled=true --set-json 'metrics.readers=[{"name":"prometheus","namespace":"monitoring"}]'
WVA_ARGS="--external-scaler-port $scaler_port --otlp-endpoint $receiver --otlp-interval 1s" baseline
trust_wva
kubectl create namespace monitoring --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl -n monitoring create serviceaccount prometheus --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl -n monitoring create token prometheus --duration 2h >"$CLUSTER_DIR/prometheus.token"
cp "$CLUSTER_DIR/prometheus.yml" "$CLUSTER_DIR/prometheus.yml.before"
cat >>"$CLUSTER_DIR/prometheus.yml" <<YAML
- job_name: wva-scraped
  scheme: https
  scrape_interval: 1s
  scrape_timeout: 1s
  authorization: {credentials_file: $CLUSTER_DIR/prometheus.token}
  tls_config: {ca_file: $CLUSTER_DIR/wva-ca.crt, server_name: wva.$release_namespace.svc}
  static_configs: [{targets: ["127.0.0.1:$wva_port"], labels: {namespace: $release_namespace}}]
YAML
signal_to prometheus HUP

# ---- the ways; each prints the number, and the age in seconds of what it rests on

# age TIMESTAMP: of RFC 3339
age() { calculate "$(date +%s.%N) - $(date -d "$1" +%s.%N)"; }

of_item() { # of a list of external or custom metrics
  local item
  item=$(jq -r '.items[0] | "\(.value) \(.timestamp)"') && echo "${item% *} $(age "${item#* }")"
}
by_external() { kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dllama" | of_item; }
by_object() { kubectl get --raw "/apis/custom.metrics.k8s.io/v1beta2/namespaces/llm/deployments.apps/llama/wva_desired_replicas" | of_item; }

# field TAG BYTES: a field of a protobuf message, with up to 127 bytes
field() { printf '%b%b%b' "\\x$1" "$(printf '\\x%02x' "$(printf %b "$2" | wc -c)")" "$2"; }
# What KEDA asks: GetMetrics of the trigger whose metadata name the variant.
grpc_request() {
  local named scaled
  named=$(field 0a variantName)$(field 12 llama)
  scaled=$(field 0a llama)$(field 12 llm)$(field 1a "$named")
  named=$(field 0a "$scaled")$(field 12 n)
  printf '%b%b' "\\x00\\x00\\x00\\x00$(printf '\\x%02x' "$(printf %b "$named" | wc -c)")" "$named"
}
by_grpc() {
  local number at
  number=$(grpc_request | curl --fail --silent --show-error --max-time 5 --http2 --cacert "$CLUSTER_DIR/wva-ca.crt" \
    --cert "$CLUSTER_DIR/pki/admin.crt" --key "$CLUSTER_DIR/pki/admin.key" --connect-to "::127.0.0.1:$scaler_port" \
    -H 'content-type: application/grpc' -H 'te: trailers' --data-binary @- --dump-header "$CLUSTER_DIR/grpc.head" \
    "https://wva.$release_namespace.svc/externalscaler.ExternalScaler/GetMetrics" | od -An -v -tu1 -w100 | awk '{print $12}') || return
  at=$(sed -n 's/^wva-evidence-timestamp: \([^\r]*\).*/\1/p' "$CLUSTER_DIR/grpc.head")
  echo "$number $(age "$at")"
}
# of_prometheus JOB LABEL: the series of a job, whose namespace is in LABEL
of_prometheus() {
  local number age selector="{job=\"$1\",variant_name=\"llama\",$2=\"llm\"}"
  number=$(query "wva_desired_replicas$selector") && age=$(query "time() - wva_evidence_timestamp_seconds$selector") && echo "$number $age"
}
query() {
  curl --fail --silent --show-error "$PROMETHEUS_URL/api/v1/query" --data-urlencode "query=$1" | jq -r '.data.result | map(.value[1]) | join(" ")'
}
by_prometheus() { of_prometheus wva-scraped exported_namespace; }
by_otlp() { of_prometheus wva namespace; }
# This page and the status have no age of the measurements; the status says when it was decided.
by_page() {
  ask_instance "$wva_port" /metrics/decisions -H 'X-Remote-Group: system:masters' | sed -n 's/^wva_desired_replicas{.*variant_name="llama".*} \([0-9]*\)$/\1 0/p'
}
by_status() {
  local status
  status=$(kubectl -n llm get va llama -o jsonpath='{.status.desiredOptimizedAlloc.numReplicas} {.status.desiredOptimizedAlloc.lastRunTime}')
  echo "${status% *} $(age "${status#* }")"
}

# everywhere NUMBER: each way shows it, and an age of at most 30 s
everywhere() {
  local way read seen="" status=0
  for way in external object grpc prometheus page otlp status; do
    read=$("by_$way" 2>&1) || status=1
    seen+="$way $read; "
    [[ $read =~ ^$1\ [0-9.e-]+$ ]] && [ "$(calculate "${read#* } < 30")" = 1 ] || status=1
  done
  echo "$seen"
  return $status
}

hold_at 2
eventually 40 "the custom metrics are available" custom_available
eventually 60 "all seven ways show 2, and the age of what it rests on" everywhere 2
allow 3
eventually 60 "a rise to 3: all show it" everywhere 3
throughout 5 "and keep showing it" everywhere 3
allow 2
eventually 60 "a fall to 2: all show it" everywhere 2

# What is no longer known has no number anywhere: OTLP ends the series with a point without a value, long before Prometheus's look-back of 5 minutes.
kubectl -n llm patch va llama --type merge -p '{"spec":{"scaleTargetRef":{"name":"elsewhere"}}}' >/dev/null
no_number() { ! [[ $("by_$1" 2>/dev/null) =~ ^[0-9]+\ [0-9.e-]+$ ]]; }
for way in external grpc prometheus page otlp; do
  eventually 30 "without its workload there is no number: $way" no_number "$way"
done
kubectl -n llm patch va llama --type merge -p '{"spec":{"scaleTargetRef":{"name":"llama"}}}' >/dev/null
eventually 60 "with it, all show it again" everywhere 2

mv "$CLUSTER_DIR/prometheus.yml.before" "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP
stop wva-0
install_chart
baseline
