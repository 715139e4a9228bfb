# shellcheck shell=bash
# (5) Two instances behind one APIService answer the same number. The leader is killed: the other instance keeps answering, and takes over.

hold_at 3
start_wva wva-1 "$second_port"
start_balancer "$balancer_port" "$wva_port" "$second_port"
route_api_server_to "$balancer_port"
eventually 60 "two instances behind a load balancer: the API server reaches them" is_available

kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$CLUSTER_DIR/wva-ca.crt"
all_agree() {
  local first second through
  first=$(metric_from ask_instance "$wva_port") && second=$(metric_from ask_instance "$second_port") && through=$(value) ||
    { echo "wva-0: $first; wva-1: ${second:-}; API server: ${through:-}"; return 1; }
  echo "wva-0 ${first% *}, wva-1 ${second% *}, API server $through"
  [ "${first% *}" = "${second% *}" ] && [ "$through" = "${first% *}" ]
}
eventually 20 "both answer the same number" all_agree
throughout 15 "and keep answering the same number" all_agree
decisions_of() {
  ask_instance "$1" /metrics/decisions -H 'X-Remote-Group: system:masters' |
    sed -n 's/^wva_desired_replicas{.*,namespace="llm",.*,variant_name="llama"} //p'
}
decisions_agree() {
  local first second
  first=$(decisions_of "$wva_port") second=$(decisions_of "$second_port")
  echo "wva-0 ${first:-none}, wva-1 ${second:-none}"
  [ "$first $second" = "3 3" ]
}
eventually 5 "both have it in /metrics/decisions, from which KEDA's metrics-api trigger reads" decisions_agree

old=$(holder)
case $old in
  wva-0*) survivor=wva-1 ;;
  wva-1*) survivor=wva-0 ;;
  *) failed "the Lease is held by neither wva-0 nor wva-1: $old" ;;
esac
stop "${old:0:5}" KILL
eventually 5 "the leader $old is killed: answers continue" value_is "==" 3
throughout 25 "without a gap, with the same number" value_is "==" 3
held_by() {
  local now
  now=$(holder) && echo "$now" && [[ $now == "$1"* ]]
}
eventually 30 "$survivor takes over the Lease" held_by "$survivor"
allow 4
eventually 90 "and decides: maximum raised to 4, which the load needs" value_is "==" 4
eventually 30 "the HPA follows" replicas_are "==" 4
