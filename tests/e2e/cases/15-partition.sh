# shellcheck shell=bash
# (15) The instance that decides loses the API server: in both directions, then its answers only, then its requests only. It stops when its
# Lease has run out by its own clock, before the other begins; until it hears who decides it says that it has no number, which nobody goes
# on hearing: it is not ready, and a connection to it ends with that answer.

hold_at 3
# Like a Service, it sends no new connection to who is not ready, and cuts no open one.
on_marked_down="" two_instances
eventually 20 "both give the same number" instance_values_are 3 3

# cut NAME PROXY OTHER NUMBER FAULT...: NAME decides and loses the API server; OTHER then decides this NUMBER, the only one that is heard.
cut() {
  local name=$1 proxy=$2 other=$3 number=$4 from
  begin_history "wva-0:$wva_port" "wva-1:$second_port"
  sleep 2
  from=$(calculate "$EPOCHREALTIME + 11") # renewed until now, its Lease is good for 10 s
  inject_fault "$proxy" "${@:5}"
  allow "$number"
  eventually 40 "$name without the API server (${*:5}): $other takes the Lease" holder_is "$other"
  eventually 30 "and decides: $number" value_is "==" "$number"
  throughout 8 "which is all that is heard" value_is "==" "$number"
  eventually 0 "and the APIService stays available" is_available
  inject_fault "$proxy"
  eventually 30 "$name is back: both give the same number" instance_values_are "$number" "$number"
  history_holds "$name, $other" "$name" "$from" "$EPOCHREALTIME"
}
cut wva-0 api_0 wva-1 4 up=hold down=hold
cut wva-1 api_1 wva-0 3 down=hold
cut wva-0 api_0 wva-1 4 up=hold
