# shellcheck shell=bash
# (23) Under a standing load the readiness of one pod after the other flaps: nothing shrinks, and what was ordered for pods that were away goes
# when they are back. Then one pod is never Ready again while load rises: the fleet grows by what it needs, the broken pod does not stand in
# its way, and when it is back what stood in for it goes. The default policy decides, with nothing configured; it removes nothing within five
# minutes after more was needed.

# most_from N: how many replicas there are at most from now on, N at first; `most_is` ends it and prints the figure
most_from() {
  echo "$1" >"$CLUSTER_DIR/most"
  while true; do
    [ "$(replicas)" -le "$(<"$CLUSTER_DIR/most")" ] || replicas >"$CLUSTER_DIR/most"
    sleep 1
  done &
  watcher=$!
}
most_is() { kill "$watcher" && cat "$CLUSTER_DIR/most"; }
breaking() { while true; do ready_is "$broken" False || true; sleep 2; done; }
trap 'kill ${watcher:-} ${breaker:-} 2>/dev/null || true' EXIT

analyzer_is default
allow 3
set_load "$(calculate "1.2 * $pod_rps")"
eventually 150 "3 allowed for the load of 1.2 pods" value_is ">=" 2
allow 10
settles 600 310 >"$CLUSTER_DIR/steady" || failed "the number does not settle: $(<"$CLUSTER_DIR/steady")"
steady=$(<"$CLUSTER_DIR/steady")
passed "a load of 1.2 pods, allowed 10: $steady replicas"

most_from "$steady"
flaps=0
for round in 1 2 3; do
  for pod in $(pods); do
    ready_is "$pod" False || continue # it has been removed meanwhile
    sleep 3
    is "$(value) >= $steady" >/dev/null || failed "a number of $(value) while the readiness of $pod flaps, in round $round"
    ready_is "$pod" True || true
    flaps=$((flaps + 1))
    sleep 1
  done
done
most=$(most_is)
is "$most <= $steady + 3" >"$CLUSTER_DIR/seen" || failed "$(<"$CLUSTER_DIR/seen"): replacements without end"
passed "the readiness of every pod flapped in turn, $flaps times: never less than $steady, $most at most"
eventually 900 "what was ordered for pods that were away goes" replicas_are "<=" "$steady"

read -r broken _ <<<"$(pods)"
breaking &
breaker=$!
load=3.3 needed=4
set_load "$(calculate "$load * $pod_rps")"
eventually 180 "$broken is broken and load rises to what $needed pods carry: so many are Ready beside it" ready_are ">=" "$needed"
eventually 240 "and it settles" settles 240 60
most=$(replicas)
is "$most <= 9" >"$CLUSTER_DIR/seen" || failed "$(<"$CLUSTER_DIR/seen"): replacements without end"
passed "from $steady to $most replicas in all"
throughout 60 "and it does not shrink" ready_are ">=" "$needed"
kill "$breaker"
ready_is "$broken" True
all_ready() { is "$(ready) == $(replicas)"; }
eventually 60 "$broken is back: all are Ready" all_ready
eventually 900 "and what stood in for it goes" replicas_are "<" "$most"
throughout 60 "while what the load needs stays" ready_are ">=" "$needed"
