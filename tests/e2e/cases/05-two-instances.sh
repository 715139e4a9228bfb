# shellcheck shell=bash
# (5) Two instances behind one APIService answer the same number. The leader is killed: the other instance keeps answering, and takes over.

# read_as ACCOUNT PATH: what the second instance answers to the token of a ServiceAccount in the namespace llm
read_as() {
  curl --fail-with-body --silent --show-error --max-time 5 --cacert "$CLUSTER_DIR/wva-ca.crt" -H "Authorization: Bearer $(kubectl -n llm create token "$1")" \
    --connect-to "::127.0.0.1:$second_port" "https://wva.$release_namespace.svc$2" 2>&1
}
reads() { local body; body=$(read_as "$1" "$2") && grep -m 1 -F -- "$3" <<<"$body"; }
is_forbidden() { local body; ! body=$(read_as "$1" "$2") && echo "$body" | tail -n 1 | cut -c 1-160 && [[ $body == *403* ]]; }

kubectl -n llm create serviceaccount reader >/dev/null
kubectl -n llm create serviceaccount stranger >/dev/null
install_chart --set "metrics.readers[0].name=reader,metrics.readers[0].namespace=llm"
route_api_server_to "$wva_port"
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
eventually 20 "a ServiceAccount of metrics.readers reads /metrics/decisions with its token" reads reader /metrics/decisions 'variant_name="llama"'
eventually 5 "and /metrics" reads reader /metrics "# TYPE wva_"
eventually 5 "another ServiceAccount reads neither" is_forbidden stranger /metrics

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

install_chart
kubectl -n llm delete serviceaccount reader stranger >/dev/null
