# shellcheck shell=bash
# (13) When a replica goes, it is the one with the least in flight: with podDeletionCost it is marked before the HPA acts, and marks that have
# become old are taken back. By itself a ReplicaSet keeps its oldest pod longest; here this is the one that has nothing to do.

cost='controller\.kubernetes\.io/pod-deletion-cost'
scale_down_after() {
  kubectl -n llm patch hpa llama --type merge -p "{\"spec\":{\"behavior\":{\"scaleDown\":{\"stabilizationWindowSeconds\":$1}}}}" >/dev/null
}
# in_flight POD: its requests, as Prometheus last saw them
in_flight() {
  curl --fail --silent --get "$PROMETHEUS_URL/api/v1/query" \
    --data-urlencode "query=sum({__name__=~\"vllm:num_requests_(running|waiting)\",pod=\"$1\"})" |
    sed -n 's/.*"value":\[[^,]*,"\([^"]*\)"\].*/\1/p'
}
has_left() { ! curl --fail --silent --output /dev/null "http://$FLEET_ADDR/pods/llm/$1/metrics" && echo "and has left"; }
in_flight_is() { local actual; actual=$(in_flight "$1"); echo "$actual requests"; [ "$actual" = "$2" ]; }
mark_is() {
  local actual
  actual=$(kubectl -n llm get pod "$1" -o jsonpath="{.metadata.annotations.$cost}")
  echo "cost $actual"
  [ "$actual" = "$2" ]
}
goes() {
  local actual
  actual=$(kubectl -n llm get pod "$1" --ignore-not-found -o jsonpath='{.metadata.name} {.metadata.deletionTimestamp}')
  case $actual in
    "") echo gone ;;
    *" ") echo "$actual stays" && return 1 ;;
    *) echo going ;;
  esac
}
pods_are() {
  local actual
  actual=$(kubectl -n llm get pods -l app=llama -o name | wc -l)
  is "$actual == $1"
}
no_marks() {
  local actual
  actual=$(kubectl -n llm get pods -l app=llama -o jsonpath="{.items[*].metadata.annotations.$cost}")
  echo "marks: ${actual:-none}"
  [ -z "$actual" ]
}

# From one pod on: three of the case before might be one too many until the load is felt, and a pod on its way out might be the oldest. The
# others leave before pods are marked: a pod whose mark has just been removed is not marked again for a minute, and the oldest could be one.
baseline
set_load "$(calculate "0.5 * $pod_rps")"
allow 1
eventually 90 "one allowed: the others leave" pods_are 1
stop wva-0
install_chart --set podDeletionCost=true
WVA_ARGS=--pod-deletion-cost baseline
hold_at 3
oldest=$(kubectl -n llm get pods -l app=llama --sort-by=.metadata.creationTimestamp -o jsonpath='{.items[0].metadata.name}')

# The oldest is taken out of the fleet until it has served what it had, while a queue grows before the others. Then nothing more comes, and it
# is back with nothing to do.
kubectl -n llm label pod "$oldest" llm-d.ai/model- >/dev/null
eventually 90 "the oldest pod, $oldest, serves what it has" has_left "$oldest"
set_load 0
kubectl -n llm label pod "$oldest" llm-d.ai/model=llama >/dev/null
eventually 40 "it is back with nothing in flight" in_flight_is "$oldest" 0

scale_down_after 10
allow 2
eventually 10 "two allowed: it is marked to go first" mark_is "$oldest" -1000
eventually 30 "the HPA takes one" replicas_are "==" 2
eventually 10 "and it is that one" goes "$oldest"
throughout 10 "the others stay" ready_are "==" 2
eventually 45 "and have no marks" no_marks

scale_down_after 0
stop wva-0
install_chart
baseline
