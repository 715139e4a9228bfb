# shellcheck shell=bash
# (8) Both instances are replaced as a rollout of the Deployment does it: a new one is up and ready, then an old one gets SIGTERM. A probe
# a second sees the APIService available throughout, no read through the API server fails, and the number doesn't change.

hold_at 2
start_wva wva-1 "$second_port"
choose_port third_port
# Like a Service, it sends no new connection to who is not ready, and cuts no open one.
on_marked_down="" start_balancer "$balancer_port" "$wva_port" "$second_port" "$third_port"
route_api_server_to "$balancer_port"
eventually 60 "two instances behind a balancer: the API server reaches them" is_available
eventually 20 "and has their number" value_is "==" 2

# note FILE SECONDS COMMAND...: what COMMAND says, a line every SECONDS, until the end of the case.
note() {
  local file=$1 pause=$2 deadline=$((SECONDS + 90)) actual
  shift 2
  while [ ! -e "$CLUSTER_DIR/rolled" ] && [ "$SECONDS" -lt "$deadline" ]; do
    sleep "$pause" &
    actual=$("$@" 2>&1) || true
    echo "$actual" >>"$file"
    wait $!
  done
}
rm -f "$CLUSTER_DIR/rolled" "$CLUSTER_DIR/probes" "$CLUSTER_DIR/reads"
note "$CLUSTER_DIR/probes" 1 available &
probing=$!
note "$CLUSTER_DIR/reads" 0.5 value &
reading=$!

# replaced OLD NEW PORT: NEW is ready and seen by the balancer before OLD is told to go.
replaced() {
  local began
  start_wva "$2" "$3"
  sleep 1
  began=$EPOCHREALTIME
  stop "$1"
  is "$(seconds_since "$began") < 18" >"$CLUSTER_DIR/took" || failed "$1 took $(<"$CLUSTER_DIR/took") s to go"
  passed "$2 for $1, which went on its own: after $(seconds_since "$began") s"
}
began=$EPOCHREALTIME
replaced wva-0 wva-2 "$third_port"
replaced wva-1 wva-3 "$wva_port"
held_by_a_new_one() {
  local now
  now=$(holder) && echo "$now" && [[ $now == wva-[23]* ]]
}
eventually 30 "a new one holds the Lease" held_by_a_new_one
throughout 5 "and the number is the same" value_is "==" 2
took=$(seconds_since "$began")
touch "$CLUSTER_DIR/rolled"
wait "$probing" "$reading"

# others FILE GOOD: how many lines are not GOOD, and the first of them.
others() {
  local count
  count=$(grep -cvxF -- "$2" "$1") || true
  [ "$count" = 0 ] && echo 0 || echo "$count, the first: $(grep -m 1 -vxF -- "$2" "$1")"
}
assert_eq "probes in $took s that saw the APIService not available, of $(wc -l <"$CLUSTER_DIR/probes")" "$(others "$CLUSTER_DIR/probes" Available=True)" 0
assert_eq "reads that failed or gave another number, of $(wc -l <"$CLUSTER_DIR/reads")" "$(others "$CLUSTER_DIR/reads" 2)" 0
is "$(wc -l <"$CLUSTER_DIR/probes") >= 15" >/dev/null || failed "too few probes to say so"
is "$(wc -l <"$CLUSTER_DIR/reads") >= 25" >/dev/null || failed "too few reads to say so"
assert_eq "instances that had to cut a connection" "$(cat "$CLUSTER_DIR"/logs/wva-[01].log | grep -c "connections did not drain")" 0
stop wva-2
stop wva-3
