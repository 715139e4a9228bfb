# shellcheck shell=bash
# (13) When a replica is removed, it is the one with the fewest requests in flight: with podDeletionCost its pod is marked before the HPA acts, and
# old marks are removed. By default a ReplicaSet keeps its oldest pod longest; here the oldest pod is the idle one.

cost='controller\.kubernetes\.io/pod-deletion-cost'
scale_down_after() {
  kubectl -n llm patch hpa llama --type merge -p "{\"spec\":{\"behavior\":{\"scaleDown\":{\"stabilizationWindowSeconds\":$1}}}}" >/dev/null
}
# in_flight POD: its requests, as in Prometheus
in_flight() {
  curl --fail --silent --get "$PROMETHEUS_URL/api/v1/query" \
    --data-urlencode "query=sum({__name__=~\"vllm:num_requests_(running|waiting)\",pod=\"$1\"})" |
    sed -n 's/.*"value":\[[^,]*,"\([^"]*\)"\].*/\1/p'
}
has_stopped() { ! curl --fail --silent --output /dev/null "http://$FLEET_ADDR/pods/llm/$1/metrics" && echo "stopped"; }
in_flight_is() { local actual; actual=$(in_flight "$1"); echo "$actual requests"; [ "$actual" = "$2" ]; }
mark_is() {
  local actual
  actual=$(kubectl -n llm get pod "$1" -o jsonpath="{.metadata.annotations.$cost}")
  echo "cost $actual"
  [ "$actual" = "$2" ]
}
is_deleted() {
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

# Start from one pod. Three pods of the previous case might be too many until the load shows, and a terminating pod might be the oldest. The
# others are deleted before pods are marked, because a pod whose mark was just removed is not marked again for a minute, and it could be the oldest.
baseline
set_load "$(calculate "0.5 * $pod_rps")"
allow 1
eventually 90 "maximum 1: the other pods are deleted" pods_are 1
stop wva-0
install_chart --set podDeletionCost=true
WVA_ARGS=--pod-deletion-cost baseline
hold_at 3
oldest=$(kubectl -n llm get pods -l app=llama --sort-by=.metadata.creationTimestamp -o jsonpath='{.items[0].metadata.name}')

# Take the oldest pod out of the fleet until it has served its requests, while a queue grows at the others. Then the load stops, and the pod
# returns idle.
kubectl -n llm label pod "$oldest" llm-d.ai/model- >/dev/null
eventually 90 "the oldest pod, $oldest, serves its requests" has_stopped "$oldest"
set_load 0
kubectl -n llm label pod "$oldest" llm-d.ai/model=llama >/dev/null
eventually 40 "it returns without requests in flight" in_flight_is "$oldest" 0

scale_down_after 10
allow 2
eventually 10 "maximum 2: it is marked to be deleted first" mark_is "$oldest" -1000
eventually 30 "the HPA removes one replica" replicas_are "==" 2
eventually 10 "the marked pod is deleted" is_deleted "$oldest"
throughout 10 "the others stay" ready_are "==" 2
eventually 45 "they have no marks" no_marks

scale_down_after 0
stop wva-0
install_chart
baseline
