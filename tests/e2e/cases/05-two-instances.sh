# shellcheck shell=bash
# (5) Two instances behind one APIService say the same. The one that decides is killed: the other goes on answering, and takes over.

steady_under 2.7
start_wva wva-1 "$second_port" || failed "the second instance did not start"
start_balancer "$balancer_port" "$wva_port" "$second_port"
point_at "$balancer_port"
eventually 60 "two instances behind a balancer: the API server reaches them" is_available

kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$BED/wva-ca.crt"
all_agree() {
  local first second through
  first=$(metric_from ask_instance "$wva_port") && second=$(metric_from ask_instance "$second_port") && through=$(value) ||
    { echo "wva-0: $first; wva-1: ${second:-}; API server: ${through:-}"; return 1; }
  echo "wva-0 ${first% *}, wva-1 ${second% *}, API server $through"
  [ "${first% *}" = "${second% *}" ] && [ "$through" = "${first% *}" ]
}
eventually 20 "both give the same number" all_agree
throughout 15 "and go on giving the same" all_agree

number=$(value)
old=$(holder)
case $old in
  wva-0*) survivor=wva-1 ;;
  wva-1*) survivor=wva-0 ;;
  *) failed "the Lease is held by neither wva-0 nor wva-1: $old" ;;
esac
stop "${old:0:5}" KILL
eventually 5 "the holder $old killed: answers go on" value_is "==" "$number"
throughout 20 "without a gap, at the same number" value_is "==" "$number"
held_by() { local now; now=$(holder) && echo "$now" && [[ $now == "$1"* ]]; }
eventually 30 "$survivor takes over the Lease" held_by "$survivor"
set_load "$(calculate "4.4 * $one")"
eventually 150 "and decides: more load, a higher number" value_is ">" "$number"
eventually 60 "which the HPA follows" replicas_are ">" "$number"
