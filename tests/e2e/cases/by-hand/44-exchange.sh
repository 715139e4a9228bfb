# shellcheck shell=bash
# (44) Back to the cheapest variant at steady load, under the default policy: a model has spilled to a dear variant because the nodes of the cheap
# one were full. Once these have room, and although nothing is missing, cheap replicas take the place of dear ones. It takes about half an hour,
# because the policy exchanges nothing before it has seen 10 minutes of steady load.

trap 'set_hpa_sync 2s' EXIT
set_hpa_sync 15s
analyzer_is default
install_chart --set limits.inventory=true
route_api_server_to "$wva_port"
configure "$release_namespace" 'enableLimiter: true'
set_load 0.1
{ gpu_node cheap-0 NVIDIA-L40S 2; gpu_node dear-0 NVIDIA-A100-SXM4-80GB 8; } | kubectl create -f - >/dev/null
{ priced cheap NVIDIA-L40S 1.0; priced dear NVIDIA-A100-SXM4-80GB 10.0; } | kubectl apply -f - >/dev/null
eventually 60 "both variants serve" both_ready "==" 2
model=spill
load=$(calculate "4.3 * $pod_rps")
set_load "$load"
eventually 600 "the cheap variant has no more room, and the dear one takes the demand" both_ready ">=" 5
gpu_node cheap-1 NVIDIA-L40S 8 | kubectl create -f - >/dev/null
passed "room returns: cheap $(ready_of cheap), dear $(ready_of dear)"
reset_stats
is_exchanged() { is "$(ready_of dear) <= 1 && $(ready_of cheap) >= 4"; }
eventually 3000 "at steady load, the cheap variant takes the demand" is_exchanged
longest=$(stat max_wait_s)
is "$longest <= 1" >/dev/null || failed "a request waited $longest s meanwhile"
passed "cheap $(ready_of cheap), dear $(ready_of dear); the longest wait of a request was $longest s"
model=llama
for i in deployment va hpa; do kubectl -n llm delete "$i" cheap dear --wait=false >/dev/null; done
kubectl delete node cheap-0 cheap-1 dear-0 >/dev/null
install_chart
route_api_server_to "$wva_port"
baseline
