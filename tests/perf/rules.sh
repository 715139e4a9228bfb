# shellcheck shell=bash
# `compare rules`: wva and prometheus-adapter on one file of rules of the adapter, one Prometheus and one set of series. Sourced by compare, after
# phases.sh and table.sh, whose keys of figures have the size first; here it is `rules`.
#
#   rules.scrapes.PART_ms                 CPU time of each part while Prometheus only scrapes
#   rules.quiet.SERVER.PART_ms            with one server running, without any reads
#   rules.KIND.S.{per_second,p50_ms,p99_ms,answers,seconds,PART_ms}   reads of this kind by server S
#   rules.S.rss.{steady,most,peak}_mib    resident memory after the reads
#   rules.S.listed_s                      seconds from the start until all metrics are listed

rule_count=${RULE_COUNT:-100} object_count=${OBJECT_COUNT:-1000}
application_pods=4 # of an application, whose label an HPA of type Pods selects
rules_begin='<!-- begin: written by tests/perf/compare rules -->'
rules_end='<!-- end: written by tests/perf/compare rules -->'

# The kinds of reads, each from its own list of requests:
#   distinct   every metric of every object, one after another: no query comes twice within seconds
#   shared     every metric of ten objects: the same queries come again within a second, as from many HPAs that read one queue
#   pods       custom metrics: every metric of the pods of every application, as HPAs of type Pods read them
#   object     custom metrics: every metric of every pod by its name
external_kinds=(distinct shared) custom_kinds=(pods object)

# set_up_rules: the test cluster of the other comparisons, the pods without their controllers, and the series of the exporter.
set_up_rules() {
  set_up
  kubectl apply -f - >/dev/null <<'YAML'
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: rules-reader}
rules: [{apiGroups: [external.metrics.k8s.io, custom.metrics.k8s.io], resources: ["*"], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: rules-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: rules-reader}
subjects: [{kind: ServiceAccount, name: horizontal-pod-autoscaler, namespace: kube-system}]
YAML
  create_pods
  write_rules >"$CLUSTER_DIR/rules.yaml"
  write_requests
  spawn exporter "$EXAMPLES/exporter" --listen "127.0.0.1:$exporter_port" --families "$rule_count" --objects "$object_count" --pages "$exporter_pages"
  await_http exporter 30 "http://127.0.0.1:$exporter_port/families/0"
  cp "$CLUSTER_DIR/pki/ca.crt" "$CLUSTER_DIR/wva-ca.crt" # a placeholder until wva has created its own
  scrape_all
  sed -i 's|/pages/|/families/|' "$CLUSTER_DIR/prometheus.yml"
  signal_to prometheus HUP
  await 120 "Prometheus has all series" families_are $((rule_count * object_count))
}
families_are() {
  local n
  n=$(prometheus_says 'count({__name__=~"app_.+"})')
  echo "$n series"
  [ "$n" = "$1" ]
}

create_pods() {
  local i
  kubectl create namespace llm --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl -n llm create serviceaccount default --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  say "creating $object_count pods"
  for ((i = 0; i < object_count; i++)); do
    cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: {name: p-$i, namespace: llm, labels: {app: a-$((i / application_pods))}}
spec: {nodeName: cpu-0, automountServiceAccountToken: false, containers: [{name: app, image: app}]}
YAML
  done >"$CLUSTER_DIR/pods.yaml"
  kubectl create -f "$CLUSTER_DIR/pods.yaml" >/dev/null
}

# write_rules: an external and a custom metric of each family.
write_rules() {
  local i part
  for part in rules externalRules; do
    echo "$part:"
    for ((i = 0; i < rule_count; i++)); do
      cat <<YAML
- seriesQuery: 'app_$i{namespace!="",pod!=""}'
  resources: {overrides: {namespace: {resource: namespace}, pod: {resource: pod}}}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)
YAML
    done
  done | awk '/^externalRules/ { external = 1 } external { sub(/ by \(<<.GroupBy>>\)/, " by (pod)") } { print }'
}

# write_requests: neighbours in a list are of different metrics.
write_requests() {
  local external=/apis/external.metrics.k8s.io/v1beta1/namespaces/llm custom=/apis/custom.metrics.k8s.io/v1beta2/namespaces/llm/pods
  awk -v rules="$rule_count" -v objects="$object_count" -v applications=$((object_count / application_pods)) -v directory="$CLUSTER_DIR" -v external="$external" -v custom="$custom" 'BEGIN {
    for (o = 0; o < objects; o++) for (r = 0; r < rules; r++) {
      print external "/app_" r "?labelSelector=pod%3Dp-" o >directory "/requests.distinct"
      if (o < 10) print external "/app_" r "?labelSelector=pod%3Dp-" o >directory "/requests.shared"
      if (o < applications) print custom "/*/app_" r "?labelSelector=app%3Da-" o >directory "/requests.pods"
      print custom "/p-" o "/app_" r >directory "/requests.object"
    }
  }'
}

# measure_rules: one run. Each server is measured while the other does not run, since an idle one relists the metrics too.
measure_rules() {
  local server
  stop adapter
  stop wva
  say "$QUIET_SECONDS s with scrapes only"
  quiet rules.scrapes
  for server in adapter wva; do
    start_with_rules "$server"
    quiet "rules.quiet.$server"
    reads_of "$server"
    memory_of "$server"
    stop "$server"
  done
}

start_with_rules() {
  local began=$EPOCHREALTIME
  if [ "$1" = wva ]; then
    WVA_ARGS="--adapter-config $CLUSTER_DIR/rules.yaml --metrics-relist-interval 1m ${WVA_ARGS:-}" start_wva wva "$wva_port"
    kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$CLUSTER_DIR/wva-ca.crt"
  else
    # Its default is 5 requests of the API server per second, one for each read by labels; that would be all that is measured.
    spawn_adapter "$CLUSTER_DIR/rules.yaml" --client-qps 10000 --client-burst 10000
  fi
  await 120 "$1 lists the metrics of all rules" lists_rules "$1"
  figure "rules.$1.listed_s" "$(seconds_since "$began")"
  await 60 "$1 answers" client reads "$1" --requests "$CLUSTER_DIR/requests.shared" --seconds 1
  sleep 5
}

# listed SERVER GROUP_VERSION: the number of the metrics of rules that it lists, as RESOURCE/METRIC or METRIC
listed() {
  local port=$1_port authority=$CLUSTER_DIR/pki/ca.crt
  [ "$1" != wva ] || authority=$CLUSTER_DIR/wva-ca.crt
  curl --fail --silent --max-time 10 --cacert "$authority" --cert "$CLUSTER_DIR/pki/front-proxy-client.crt" --key "$CLUSTER_DIR/pki/front-proxy-client.key" \
    -H 'X-Remote-User: reader' -H 'X-Remote-Group: system:masters' --connect-to "::127.0.0.1:${!port}" "https://$1.$release_namespace.svc/apis/$2" |
    grep -oE '"name": ?"(pods/)?app_[0-9]+"' | wc -l
}
lists_rules() {
  local n
  n=$(listed "$1" external.metrics.k8s.io/v1beta1) || true
  echo "$n metrics"
  [ "$n" = "$rule_count" ]
}

reads_of() {
  local kind kinds=("${external_kinds[@]}") key
  if [ "$(listed "$1" custom.metrics.k8s.io/v1beta2 || true)" = "$rule_count" ]; then
    kinds+=("${custom_kinds[@]}")
  else
    say "$1 serves no custom metrics of these rules"
  fi
  for kind in "${kinds[@]}"; do
    key=rules.$kind.$1
    measure_cpu "$key" record_client "$key" reads "$1" --requests "$CLUSTER_DIR/requests.$kind" --connections 64 --seconds "$LOAD_SECONDS"
    say "$kind, $1: $(get_figure "$key.per_second")/s, p50 $(get_figure "$key.p50_ms") ms, p99 $(get_figure "$key.p99_ms") ms"
  done
}

memory_of() {
  local sorted=$CLUSTER_DIR/rss.sorted
  sample_memory "$CLUSTER_DIR/rss" $((QUIET_SECONDS * 10)) "$1"
  sort -n "$CLUSTER_DIR/rss" >"$sorted"
  figure "rules.$1.rss.steady_mib" "$(awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }' "$sorted")"
  figure "rules.$1.rss.most_mib" "$(awk 'END { print $1 }' "$sorted")"
  figure "rules.$1.rss.peak_mib" "$(memory VmHWM "$1")"
}

# ---- the table

# what_is_read KIND
what_is_read() {
  local all
  all=$(grouped $((rule_count * object_count)))
  case $1 in
    distinct) echo "external metrics, $all different reads" ;;
    shared) echo "external metrics, $(grouped $((rule_count * 10))) different reads" ;;
    pods) echo "custom metrics of $application_pods pods by their labels, $(grouped $((rule_count * object_count / application_pods))) different reads" ;;
    object) echo "custom metrics of a pod by its name, $all different reads" ;;
  esac
}

# measured: the kinds for which both servers have figures
measured() {
  local kind server
  for kind in "${external_kinds[@]}" "${custom_kinds[@]}"; do
    for server in adapter wva; do [ -n "$(first "rules.$kind.$server.per_second")" ] || continue 2; done
    echo "$kind"
  done
}

# cpu_of KIND SERVER: µs of CPU time per answer of the server alone; total_cpu_of adds what Prometheus and the API server spend above the quiet phase.
cpu_of() { awk -v ms="$(get_figure "rules.$1.$2.$2_ms")" -v answers="$(get_figure "rules.$1.$2.answers")" 'BEGIN { print ms * 1000 / answers }'; }
total_cpu_of() {
  local part total
  total=$(get_figure "rules.$1.$2.$2_ms")
  for part in prometheus kube-apiserver; do
    total=$(awk -v total="$total" -v here="$(get_figure "rules.$1.$2.${part}_ms")" -v seconds="$(get_figure "rules.$1.$2.seconds")" \
      -v idle="$(get_figure "rules.quiet.$2.${part}_ms")" -v idle_seconds="$(get_figure "rules.quiet.$2.seconds")" 'BEGIN {
        share = here - idle / idle_seconds * seconds
        print total + (share > 0 ? share : 0) }')
  done
  awk -v ms="$total" -v answers="$(get_figure "rules.$1.$2.answers")" 'BEGIN { print ms * 1000 / answers }'
}

rules_bounds() {
  local kind what
  for kind in $(measured); do
    what=$(what_is_read "$kind")
    times_more "answers/s, $what" "$(runs get_figure "rules.$kind.wva.per_second")" "$(runs get_figure "rules.$kind.adapter.per_second")" "" 5 ""
    times_less "p99, $what" "$(runs get_figure "rules.$kind.wva.p99_ms")" "$(runs get_figure "rules.$kind.adapter.p99_ms")" " ms" 5 ""
    times_less "CPU time per answer, $what" "$(runs cpu_of "$kind" wva)" "$(runs cpu_of "$kind" adapter)" " µs" 5 ""
    times_less "the same with what Prometheus and the API server spend on it" "$(runs total_cpu_of "$kind" wva)" "$(runs total_cpu_of "$kind" adapter)" " µs" 5 ""
  done
  within "resident memory after these reads" "$(runs get_figure rules.wva.rss.steady_mib)" "$(runs get_figure rules.adapter.rss.steady_mib)" " MiB" 1 ""
}

rules_table() {
  local kind server
  cat <<MARKDOWN
$(first run.date), commit $(first run.commit), on $(first run.machine); prometheus-adapter $(first run.adapter), Kubernetes $(first run.kubernetes),
Prometheus $(first run.prometheus) with a scrape of $(grouped $((rule_count * object_count))) series every $(first run.scrape). Medians of ${#ALL_FIGURES[@]} runs, with minimum and maximum in brackets.

| what | wva | prometheus-adapter | ratio and bound | | goal |
|---|---|---|---|---|---|
$(rules_bounds)

| reads, 64 connections | server | answers/s | p50 ms | p99 ms | CPU µs per answer | with Prometheus and API server | bytes |
|---|---|---|---|---|---|---|---|
$(for kind in "${external_kinds[@]}" "${custom_kinds[@]}"; do
    for server in adapter wva; do
      [ -n "$(first "rules.$kind.$server.per_second")" ] || continue
      echo "| $(what_is_read "$kind") | $server | $(short "$(typical "rules.$kind.$server.per_second")") | $(short "$(typical "rules.$kind.$server.p50_ms")") | $(short "$(typical "rules.$kind.$server.p99_ms")") | $(short "$(median "$(runs cpu_of "$kind" "$server")")") | $(short "$(median "$(runs total_cpu_of "$kind" "$server")")") | $(typical "rules.$kind.$server.bytes") |"
    done
  done)

Resident memory, steady / maximum / peak: wva $(memories rules wva) MiB, adapter $(memories rules adapter) MiB.
All metrics listed after the start: wva $(short "$(typical rules.wva.listed_s)") s, adapter $(short "$(typical rules.adapter.listed_s)") s.
CPU time without reads, in ms per second: wva $(a_second rules.quiet.wva wva) and Prometheus $(a_second rules.quiet.wva prometheus); adapter $(a_second rules.quiet.adapter adapter) and Prometheus $(a_second rules.quiet.adapter prometheus);
Prometheus $(a_second rules.scrapes prometheus) while it only scrapes.
MARKDOWN
}
