# shellcheck shell=bash
# (39) HPAs with a target of the type Value, as KServe writes them: with --serve-value-targets the number is served divided by the Ready pods, and the
# real controller's product is the number, up and down. Without a Ready pod the product would be 0: the HPA gets an error and keeps its replicas.

# demand N: the maximum is N, and the load is above the capacity of N pods
demand() {
  allow "$1"
  set_load "$(calculate "($1 + 0.3) * $pod_rps")"
}
decided() { is "$(va_column) == $1"; }
target_is() {
  kubectl -n llm patch hpa llama --type json -p "[{\"op\":\"replace\",\"path\":\"/spec/metrics/0/external/target\",\"value\":$1}]" >/dev/null
}

stop wva-0
install_chart --set serveValueTargets=true
WVA_ARGS=--serve-value-targets baseline
allow 1
set_load "$(calculate "0.4 * $pod_rps")"
eventually 120 "load for one pod: one replica" replicas_are "==" 1
target_is '{"type":"Value","value":"1"}'
throughout 6 "with a target of the type Value it stays" replicas_are "==" 1
demand 3
eventually 150 "load for more than 3, maximum 3: the number is 3" decided 3
eventually 30 "the HPA makes it 3 replicas" replicas_are "==" 3
eventually 30 "they are Ready" ready_are "==" 3
throughout 15 "and never more: the number is served divided" replicas_are "==" 3
eventually 10 "which is 1 for 3 Ready pods" value_is "==" 1
demand 7
eventually 150 "a number of 7" decided 7
eventually 30 "makes 7 replicas of 3" replicas_are "==" 7
eventually 30 "they are Ready" ready_are "==" 7
throughout 10 "and never more" replicas_are "==" 7
set_load "$(calculate "0.4 * $pod_rps")"
allow 2
eventually 60 "a maximum of 2 makes 2 replicas of 7" replicas_are "==" 2
throughout 10 "and not fewer" replicas_are "==" 2

# A reader with AverageValue needs the number as it is.
kubectl -n llm get hpa llama -o json | jq 'del(.metadata.uid, .metadata.resourceVersion, .status) | .metadata.name = "average"
  | .spec.scaleTargetRef.name = "none" | .spec.metrics[0].external.target = {type: "AverageValue", averageValue: "1"}' | kubectl apply -f - >/dev/null
number=$(va_column)
eventually 20 "another HPA reads it with the type AverageValue: it is served as it is" value_is "==" "$number"
kubectl -n llm delete hpa average >/dev/null
# replicas_stay NUMBER: for 5 s, in which the HPA controller sets what it has read before
replicas_stay() { for _ in 1 2 3 4 5; do replicas_are "==" "$1" || return 1; sleep 1; done; }
eventually 60 "without that HPA it is divided again, and what was multiplied meanwhile is corrected" replicas_stay 2
eventually 30 "2 pods are Ready" ready_are "==" 2

for pod in $(pods); do ready_is "$pod" False; done
eventually 20 "no pod is Ready: the HPA gets an error" hpa_reports FailedGetExternalMetric "no pod is Ready"
throughout 10 "and keeps its replicas" replicas_are "==" 2
for pod in $(pods); do ready_is "$pod" True; done
eventually 20 "they are Ready again: it is served" value_is ">=" 0
target_is '{"type":"AverageValue","averageValue":"1"}'
stop wva-0
install_chart
baseline
