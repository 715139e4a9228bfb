# shellcheck shell=bash
# (15) The leader loses the API server: in both directions, then only the responses, then only the requests. It stops deciding when its Lease
# expires by its own clock, before the other instance begins. Until it knows the new leader, it answers that it has no number. Clients do not keep
# getting that answer: the instance is not Ready, and the answer is the last one on its connection.

hold_at 3
# Like a Service, the load balancer sends no new connections to instances that are not Ready, and does not cut open ones.
on_marked_down="" two_instances
eventually 20 "both answer the same number" instance_values_are 3 3

# cut NAME PROXY OTHER NUMBER FAULT...: NAME leads and loses the API server. OTHER then decides NUMBER, the only number that is answered.
cut() {
  local name=$1 proxy=$2 other=$3 number=$4 from
  begin_history "wva-0:$wva_port" "wva-1:$second_port"
  sleep 2
  from=$(calculate "$EPOCHREALTIME + 11") # renewed until now, its Lease is valid for 10 s
  inject_fault "$proxy" "${@:5}"
  allow "$number"
  eventually 40 "$name without the API server (${*:5}): $other takes the Lease" holder_is "$other"
  eventually 30 "and decides: $number" value_is "==" "$number"
  throughout 8 "no other number is answered" value_is "==" "$number"
  eventually 0 "the APIService stays available" is_available
  inject_fault "$proxy"
  eventually 30 "$name is back: both answer the same number" instance_values_are "$number" "$number"
  history_holds "$name, $other" "$name" "$from" "$EPOCHREALTIME"
}
cut wva-0 api_0 wva-1 4 up=hold down=hold
cut wva-1 api_1 wva-0 3 down=hold
cut wva-0 api_0 wva-1 4 up=hold
