# shellcheck shell=bash
# The phases of a measurement, and the lines `KEY VALUE` that they write to $FIGURES. N is the number of variants, S a server.
# Sourced by compare and scale, after servers.sh.
#
#   N.quiet.SERIES_ONLY.prometheus_ms_s   CPU time per second of Prometheus while it only scrapes the pods
#   N.quiet.PART_ms_s                     CPU time per second of each part without any reads
#   N.S.cC.{per_second,p50_ms,p99_ms,p999_ms,answers,bytes,seconds,PART_ms}   reads on C connections, and CPU time of each part during them
#   N.S.list.{lists,p50_ms,p99_ms,bytes}  reads of everything in one list
#   N.aggregated-S.{p50_ms,p99_ms,…}      16 connections through the API server
#   N.age.{evidence,scrape,above}_{p50,p99}_s   ages of the evidence in wva's answers, of the newest sample, and the difference
#   N.S.rss.{start,steady,most,peak}_mib  resident memory
#   N.evaluation_s                        mean duration of an evaluation
#   decide.N_ms                           a decision alone
#
# Each run has a file of its own.

parts=(wva adapter prometheus kube-apiserver stub)

say() { printf '%3d:%02d  %s\n' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) "$*"; }

# figure KEY VALUE: appends it to FIGURES, the file of the current run. The keys are described above.
figure() { echo "$1 $2" >>"$FIGURES"; }

# get_figure KEY: the value of the key; empty if it was not measured
get_figure() { awk -v key="$1" '$1 == key { $1 = ""; value = substr($0, 2) } END { print value }' "$FIGURES"; }

# measure VARIANTS: everything at one size, from a fresh start of both servers.
measure() {
  local variants=$1 connections server
  stop adapter
  stop wva
  say "$variants variants: $QUIET_SECONDS s with scrapes only"
  quiet "$variants.series_only"
  start_servers "$variants"
  say "$variants variants: $QUIET_SECONDS s without reads"
  quiet "$variants.quiet"
  for connections in 1 16 64; do
    for server in adapter wva stub; do
      reads "$variants" "$server" "$connections"
    done
  done
  for server in aggregated-stub aggregated-wva; do
    record_client "$variants.$server" reads "$server" --variants "$variants" --connections 16 --seconds "$LOAD_SECONDS"
  done
  say "$variants variants through the API server: $(get_figure "$variants.aggregated-wva.p50_ms") ms, the stub $(get_figure "$variants.aggregated-stub.p50_ms") ms at the median"
  for server in adapter wva; do
    record_client "$variants.$server.list" list "$server" --seconds "$LIST_SECONDS"
    say "$variants variants in one list from $server: $(get_figure "$variants.$server.list.p50_ms") ms at the median"
  done
  age_and_memory "$variants"
}

# grow VARIANTS [FILL_ARGUMENT...]: creates the objects and series, before the measured servers run.
grow() {
  stop adapter
  stop wva
  say "$1 variants: creating the objects"
  "$EXAMPLES/fill" --kubeconfig "$CLUSTER_DIR/admin.kubeconfig" --variants "$@" | while read -r line; do say "  $line"; done
  start_exporter "$1"
  [ -e "$CLUSTER_DIR/wva-ca.crt" ] || cp "$CLUSTER_DIR/pki/ca.crt" "$CLUSTER_DIR/wva-ca.crt" # a placeholder until wva has created its own
  scrape_all
  await 60 "Prometheus has the series of all pods" series_are $(($1 * 2))
}
series_are() {
  local n
  n=$(prometheus_says 'count(vllm:num_requests_waiting)')
  echo "$n series"
  [ "$n" = "$1" ]
}

# start_servers VARIANTS: starts wva and waits for all numbers, then the adapter, and waits until both are idle.
start_servers() {
  local began=$EPOCHREALTIME
  [ -z "${ANALYZER:-}" ] || configure "$release_namespace" "analyzerName: $ANALYZER"
  MAX_STALE=5m start_wva wva "$wva_port"
  kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$CLUSTER_DIR/wva-ca.crt"
  figure "$1.wva.rss.start_mib" "$(rss wva)"
  await 300 "every variant has a number" numbered "$1"
  say "$1 variants: all have a number $(seconds_since "$began") s after wva was started"
  await 90 "Prometheus has scraped wva" scraped "$1"
  start_adapter
  start_stub
  await 60 "the API of the stub is available" stub_available
  await 60 "the API of wva is available" is_available
  settle
  say "idle $(seconds_since "$began") s after the start"
}
numbered() {
  local n
  n=$(own_metrics | grep -c '^wva_desired_replicas{' || true)
  echo "$n variants have a number"
  [ "$n" = "$1" ]
}
scraped() {
  local n
  n=$(prometheus_says 'count(wva_desired_replicas)')
  echo "$n series"
  [ "$n" = "$1" ]
}
stub_available() { [ "$(kubectl get apiservice "v1beta1.$stub_group" -o jsonpath='{.status.conditions[?(@.type=="Available")].status}')" = True ]; }

# settle: waits until the API server is idle, because wva writes every status after a start, at most 20 per second. Waits at most four minutes.
settle() {
  local before now deadline=$((SECONDS + 240))
  before=$(cpu_ms kube-apiserver)
  while sleep 5; do
    now=$(cpu_ms kube-apiserver)
    [ $((now - before)) -ge 500 ] || return 0
    [ "$SECONDS" -lt "$deadline" ] || { say "the API server is still busy after 240 s; some statuses may not be written yet"; return 0; }
    before=$now
  done
}

# ---- processor time from /proc, in ticks of 10 ms, so only for long phases

cpu_ms() {
  local pid stat
  alive "$1" || { echo 0; return; }
  read -r pid _ <"$CLUSTER_DIR/pids/$1"
  stat=$(<"/proc/$pid/stat")
  # shellcheck disable=SC2086 # fields, after the command name
  set -- ${stat##*) }
  echo $(((${12} + ${13}) * 1000 / $(getconf CLK_TCK)))
}

# measure_cpu KEY COMMAND...: runs COMMAND, and records its duration and CPU times as KEY.seconds and KEY.PART_ms
measure_cpu() {
  local key=$1 part since=$EPOCHREALTIME
  local -A before
  shift
  for part in "${parts[@]}"; do before[$part]=$(cpu_ms "$part"); done
  "$@"
  figure "$key.seconds" "$(awk -v from="$since" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.3f", to - from }')"
  for part in "${parts[@]}"; do figure "$key.${part}_ms" $(($(cpu_ms "$part") - before[$part])); done
}

quiet() { measure_cpu "$1" sleep "$QUIET_SECONDS"; }

# record_client KEY WHAT SERVER [ARGUMENT...]: runs the load client and records every number of its result, a flat object
record_client() {
  local field answer
  answer=$(client "${@:2}")
  for field in $(tr -d '{}"' <<<"$answer" | tr ',' ' '); do
    figure "$1.${field%%:*}" "${field#*:}"
  done
}

# reads VARIANTS SERVER CONNECTIONS
reads() {
  local key=$1.$2.c$3
  measure_cpu "$key" record_client "$key" reads "$2" --variants "$1" --connections "$3" --seconds "$LOAD_SECONDS"
  say "$1 variants, $3 connections, $2: $(get_figure "$key.per_second")/s, p50 $(get_figure "$key.p50_ms") ms, p99 $(get_figure "$key.p99_ms") ms"
}

# ---- memory and age together, because the few reads of `age` do not matter

age_and_memory() {
  local variants=$1 sampler
  sample_memory "$CLUSTER_DIR/rss" $((AGE_SECONDS * 10)) wva adapter &
  sampler=$!
  record_client "$variants.age" age wva --variants "$variants" --seconds "$AGE_SECONDS" --prometheus "$PROMETHEUS_URL"
  wait "$sampler"
  local server column=1
  for server in wva adapter; do
    figure "$variants.$server.rss.steady_mib" "$(cut -d ' ' -f $column "$CLUSTER_DIR/rss" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')"
    figure "$variants.$server.rss.most_mib" "$(cut -d ' ' -f $column "$CLUSTER_DIR/rss" | sort -n | tail -n 1)"
    figure "$variants.$server.rss.peak_mib" "$(memory VmHWM $server)"
    column=2
  done
  figure "$variants.evaluation_s" "$(mean_evaluation)"
  say "$variants variants: evidence $(get_figure "$variants.age.above_p99_s") s above the scrape's at p99, $(get_figure "$variants.wva.rss.steady_mib") MiB, an evaluation takes $(get_figure "$variants.evaluation_s") s"
}

# sample_memory FILE COUNT SERVER...: writes the resident memory of the servers ten times per second
sample_memory() {
  local i server
  for ((i = 0; i < $2; i++)); do
    for server in "${@:3}"; do printf '%s ' "$(rss "$server")"; done
    echo
    sleep 0.08 # plus about 20 ms for the sample itself
  done >"$1"
}

rss() { memory VmRSS "$1"; }
# memory FIELD NAME: in MiB
memory() {
  local pid
  read -r pid _ <"$CLUSTER_DIR/pids/$2"
  awk -v field="$1:" '$1 == field { printf "%.1f\n", $2 / 1024 }' "/proc/$pid/status"
}

mean_evaluation() {
  own_metrics | awk '/^wva_evaluation_duration_seconds_sum/ { sum = $2 } /^wva_evaluation_duration_seconds_count/ { n = $2 }
    END { printf "%.3f", n ? sum / n : 0 }'
}

# ---- the core alone

# measure_decide: medians of criterion
measure_decide() {
  (cd "$root" && timeout 900 cargo bench --quiet --locked -p wva-core --bench decide -- --noplot --warm-up-time 1 --measurement-time 3 --sample-size 20 '^decide/') >"$CLUSTER_DIR.decide.log" 2>&1 ||
    { cat "$CLUSTER_DIR.decide.log" >&2; return 1; }
  local variants estimates
  for variants in 100 1000 10000 100000; do
    estimates=${CARGO_TARGET_DIR:-$root/target}/criterion/decide/$variants/new/estimates.json
    figure "decide.${variants}_ms" "$(sed 's/.*"median":{"confidence_interval":{[^}]*},"point_estimate":\([0-9.e+]*\).*/\1/' "$estimates" | awk '{ printf "%.4f", $1 / 1e6 }')"
  done
}
