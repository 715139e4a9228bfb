# shellcheck shell=bash
# (23) Under constant load the readiness of one pod after the other flaps: nothing shrinks, and replacements are removed once the pods are
# back. Then one pod stays not Ready while load rises: the fleet grows by what it needs despite the broken pod, and the replacement is removed
# once the pod is back. The default policy decides without configuration; it removes nothing within five minutes after more was needed.

# watch_max N: records the maximum number of replicas from now on, starting at N; `end_watch` stops it and prints the maximum
watch_max() {
  echo "$1" >"$CLUSTER_DIR/peak"
  while true; do
    [ "$(replicas)" -le "$(<"$CLUSTER_DIR/peak")" ] || replicas >"$CLUSTER_DIR/peak"
    sleep 1
  done &
  watcher=$!
}
end_watch() { kill "$watcher" && cat "$CLUSTER_DIR/peak"; }
keep_broken() { while true; do ready_is "$broken" False || true; sleep 2; done; }
trap 'kill ${watcher:-} ${breaker:-} 2>/dev/null || true' EXIT

analyzer_is default
allow 3
set_load "$(calculate "1.2 * $pod_rps")"
eventually 150 "maximum 3, load of 1.2 pods" value_is ">=" 2
allow 10
settles 600 310 >"$CLUSTER_DIR/steady" || failed "the number does not settle: $(<"$CLUSTER_DIR/steady")"
steady=$(<"$CLUSTER_DIR/steady")
passed "load of 1.2 pods, maximum 10: $steady replicas"

watch_max "$steady"
flaps=0
for round in 1 2 3; do
  for pod in $(pods); do
    ready_is "$pod" False || continue # it was deleted meanwhile
    sleep 3
    is "$(value) >= $steady" >/dev/null || failed "the number fell to $(value) while the readiness of $pod flapped, in round $round"
    ready_is "$pod" True || true
    flaps=$((flaps + 1))
    sleep 1
  done
done
peak=$(end_watch)
is "$peak <= $steady + 3" >"$CLUSTER_DIR/comparison" || failed "$(<"$CLUSTER_DIR/comparison"): unbounded replacements"
passed "the readiness of every pod flapped in turn, $flaps times: never below $steady, at most $peak"
eventually 900 "the replacements are removed" replicas_are "<=" "$steady"

read -r broken _ <<<"$(pods)"
keep_broken &
breaker=$!
load=3.3 needed=4
set_load "$(calculate "$load * $pod_rps")"
eventually 180 "$broken is broken, and load rises to the capacity of $needed pods: $needed others are Ready" ready_are ">=" "$needed"
eventually 240 "the count settles" settles 240 60
peak=$(replicas)
is "$peak <= 9" >"$CLUSTER_DIR/comparison" || failed "$(<"$CLUSTER_DIR/comparison"): unbounded replacements"
passed "from $steady to $peak replicas in all"
throughout 60 "the fleet does not shrink" ready_are ">=" "$needed"
kill "$breaker"
ready_is "$broken" True
all_ready() { is "$(ready) == $(replicas)"; }
eventually 60 "$broken is back: all pods are Ready" all_ready
eventually 900 "its replacement is removed" replicas_are "<" "$peak"
throughout 60 "what the load needs stays" ready_are ">=" "$needed"
