# shellcheck shell=bash
# (8) Both instances are replaced as in a rollout of the Deployment: a new one becomes Ready, then an old one gets SIGTERM. A probe once per
# second finds the APIService available throughout, no read through the API server fails, and the number does not change.

hold_at 2
start_wva wva-1 "$second_port"
choose_port third_port
# Like a Service, the load balancer sends no new connections to instances that are not Ready, and does not cut open ones.
on_marked_down="" start_balancer "$balancer_port" "$wva_port" "$second_port" "$third_port"
route_api_server_to "$balancer_port"
eventually 60 "two instances behind a load balancer: the API server reaches them" is_available
eventually 20 "the API server reads their number" value_is "==" 2

# log_every FILE SECONDS COMMAND...: appends the output of COMMAND, one line every SECONDS, until the end of the case.
log_every() {
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
log_every "$CLUSTER_DIR/probes" 1 available &
probing=$!
log_every "$CLUSTER_DIR/reads" 0.5 value &
reading=$!

# replace OLD NEW PORT: starts NEW, waits until the load balancer has seen it, and stops OLD.
replace() {
  local began
  start_wva "$2" "$3"
  sleep 1
  began=$EPOCHREALTIME
  stop "$1"
  is "$(seconds_since "$began") < 18" >"$CLUSTER_DIR/took" || failed "$1 took $(<"$CLUSTER_DIR/took") s to exit"
  passed "$2 replaces $1, which exited by itself: after $(seconds_since "$began") s"
}
began=$EPOCHREALTIME
replace wva-0 wva-2 "$third_port"
replace wva-1 wva-3 "$wva_port"
new_instance_leads() {
  local now
  now=$(holder) && echo "$now" && [[ $now == wva-[23]* ]]
}
eventually 30 "a new instance holds the Lease" new_instance_leads
throughout 5 "the number stays the same" value_is "==" 2
took=$(seconds_since "$began")
touch "$CLUSTER_DIR/rolled"
wait "$probing" "$reading"

# count_other_lines FILE GOOD: the number of lines that differ from GOOD, and the first of them.
count_other_lines() {
  local count
  count=$(grep -cvxF -- "$2" "$1") || true
  [ "$count" = 0 ] && echo 0 || echo "$count, the first: $(grep -m 1 -vxF -- "$2" "$1")"
}
assert_eq "probes in $took s that found the APIService unavailable, of $(wc -l <"$CLUSTER_DIR/probes")" "$(count_other_lines "$CLUSTER_DIR/probes" Available=True)" 0
assert_eq "reads that failed or gave another number, of $(wc -l <"$CLUSTER_DIR/reads")" "$(count_other_lines "$CLUSTER_DIR/reads" 2)" 0
is "$(wc -l <"$CLUSTER_DIR/probes") >= 15" >/dev/null || failed "too few probes to judge"
is "$(wc -l <"$CLUSTER_DIR/reads") >= 25" >/dev/null || failed "too few reads to judge"
assert_eq "instances that had to cut a connection" "$(cat "$CLUSTER_DIR"/logs/wva-[01].log | grep -c "connections did not drain")" 0
stop wva-2
stop wva-3
