# shellcheck shell=bash
# (41) What there is no room for is not asked for: a ResourceQuota, nodes with a taint, and nodes that are full limit the number, and a condition
# names them, with the scheduler's own words about pods without a node. Where the cheapest variant has no room the next one takes the demand, until
# there is room again. The scheduler and the quota controller are real.

# constrained_says NAME TEXT: the condition CapacityConstrained contains TEXT
constrained_says() {
  local actual
  actual=$(kubectl -n llm get va "$1" -o jsonpath='{range .status.conditions[?(@.type=="CapacityConstrained")]}{.status} {.reason}: {.message}{end}')
  echo "$actual"
  [[ $actual == *"$2"* ]]
}
number_of() {
  kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3D$1" | jq -r '.items[0].value'
}
number_of_is() { local n; n=$(number_of "$1" 2>&1) || { echo "$n"; return 1; }; is "$n $2 $3"; }
ready_of_are() { is "$(ready_of "$1") $2 $3"; }
pending_are() {
  local n
  n=$(kubectl -n llm get pods -l "app=$1" --field-selector status.phase=Pending -o name | wc -l)
  is "$n $2 $3"
}

analyzer=$'analyzerName: saturation-percent'
# A definition that is installed later is seen within a minute.
kubectl apply -f "$e2e/objects/local-queue-crd.yaml" >/dev/null
kubectl wait --for=condition=Established crd/localqueues.kueue.x-k8s.io --timeout=30s >/dev/null
kubectl create -f - >/dev/null <<'YAML'
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: team, namespace: llm}
spec: {clusterQueue: gpus, stopPolicy: Hold}
YAML
allow 10
set_load 0.1
eventually 120 "one replica" ready_are "==" 1

# A ResourceQuota.
kubectl -n llm create quota gpus --hard=requests.nvidia.com/gpu=3 >/dev/null
set_load "$(calculate "4.3 * $pod_rps")"
eventually 120 "the number is what the quota allows" value_is "==" 3
eventually 60 "a condition names the quota" constrained_says llama "LimitReached: 3 instead of"
throughout 20 "the number stays there" value_is "==" 3
constrained_says llama "ResourceQuota of nvidia.com/gpu in llm/gpus" >/dev/null || failed "the quota is not named: $(constrained_says llama "")"
passed "it is named: $(constrained_says llama "")"
kubectl -n llm delete quota gpus >/dev/null
eventually 120 "without the quota: more" ready_are ">" 3

# A queue of Kueue that admits nothing.
kubectl -n llm label deployment llama kueue.x-k8s.io/queue-name=team >/dev/null
set_load "$(calculate "6.3 * $pod_rps")"
eventually 120 "a condition names the queue" constrained_says llama "closed LocalQueue of llm/team (stopPolicy Hold)"
throughout 10 "nothing is asked for that it would not admit" value_is "==" "$(replicas)"
kubectl -n llm patch localqueue team --type merge -p '{"spec":{"stopPolicy":"None"}}' >/dev/null
eventually 120 "it admits again: more" ready_are ">=" 7
kubectl delete crd localqueues.kueue.x-k8s.io >/dev/null
kubectl -n llm label deployment llama kueue.x-k8s.io/queue-name- >/dev/null

# A cordoned node: its pods stay, and further ones have no node.
kubectl cordon gpu-0 >/dev/null
set_load "$(calculate "9.3 * $pod_rps")"
eventually 120 "a pod has no node" pending_are llama ">=" 1
eventually 60 "a condition says what the scheduler says" constrained_says llama "NoNodeHasRoom: no node has room for"
constrained_says llama "the scheduler says: 0/2 nodes are available: " >/dev/null || failed "the scheduler is not quoted: $(constrained_says llama "")"
passed "it is quoted: $(constrained_says llama "")"
kubectl uncordon gpu-0 >/dev/null
eventually 60 "with the node: all are placed" pending_are llama "==" 0

# A taint, where the GPUs of the nodes are a limit.
set_load 0.1
eventually 240 "the load falls" ready_are "<=" 2
install_chart --set limits.inventory=true
route_api_server_to "$wva_port"
configure "$release_namespace" "$analyzer"$'\nenableLimiter: true\nfailClosed: true'
kubectl taint node gpu-0 dedicated=training:NoSchedule >/dev/null
before=$(replicas)
set_load "$(calculate "4.3 * $pod_rps")"
eventually 120 "a condition says that no node is suitable" constrained_says llama "suitable nodes of H100 for llm/llama: 0.0 of"
throughout 15 "nothing is asked for that has no node" value_is "<=" "$before"
assert_eq "pods without a node" "$(kubectl -n llm get pods -l app=llama --field-selector status.phase=Pending -o name | wc -l)" 0
configure "$release_namespace" "$analyzer"$'\nenableLimiter: true'
eventually 120 "without failClosed a node autoscaler sees a pod without a node" pending_are llama ">=" 1
kubectl taint node gpu-0 dedicated- >/dev/null
eventually 120 "without the taint: more" ready_are ">=" 3
set_load 0.1

# To the next variant, and to the cheapest again.
configure "$release_namespace" 'enableLimiter: true'
{ gpu_node cheap-0 NVIDIA-L40S 2; gpu_node dear-0 NVIDIA-A100-SXM4-80GB 8; } | kubectl create -f - >/dev/null
{ priced cheap NVIDIA-L40S 1.0; priced dear NVIDIA-A100-SXM4-80GB 10.0; } | kubectl apply -f - >/dev/null
eventually 60 "both variants serve" both_ready "==" 2
model=spill
set_load "$(calculate "1.2 * $pod_rps")"
eventually 30 "both have a number" number_of_is dear ">=" 1
set_load "$(calculate "4.3 * $pod_rps")"
eventually 420 "the cheap variant has no more room, and the dear one takes the demand" both_ready ">=" 5
# A pod of llama that had waited may have the other GPU.
ready_of_are cheap "<=" 2 >/dev/null || failed "the cheap variant has $(ready_of cheap) Ready pods on two GPUs"
passed "cheap $(ready_of cheap), dear $(ready_of dear)"
dear=$(ready_of dear)
gpu_node cheap-1 NVIDIA-L40S 8 | kubectl create -f - >/dev/null
set_load "$(calculate "8.3 * $pod_rps")"
eventually 300 "room returns, and demand rises: the cheap variant takes it" ready_of_are cheap ">=" 4
eventually 120 "there is what is needed" both_ready ">=" 9
passed "cheap $(ready_of cheap), dear $(ready_of dear) after $dear"

# GPUs that pods claim: a driver publishes two of a node.
kubectl create -f - >/dev/null <<YAML
$(gpu_node claimed-0 NVIDIA-B200 0)
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec: {selectors: [{cel: {expression: device.driver == "gpu.nvidia.com"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: claimed-0}
spec:
  driver: gpu.nvidia.com
  nodeName: claimed-0
  pool: {name: claimed-0, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0, attributes: {type: {string: gpu}}}, {name: gpu-1, attributes: {type: {string: gpu}}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu, namespace: llm}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
YAML
priced claimed NVIDIA-B200 1.0 | sed -e "s/llm-d.ai\/model: spill/llm-d.ai\/model: claims/; s/modelID: spill/modelID: claims/" \
  -e "s/nodeSelector: .*/&\n      resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]/; s/limits: {nvidia.com\/gpu: .*/claims: [{name: gpu}]/" |
  kubectl apply -f - >/dev/null
eventually 60 "a pod gets the GPU that it claims" ready_of_are claimed "==" 1
assert_eq "claims of a driver's GPUs that are allocated" "$(kubectl -n llm get resourceclaims -o json | jq '[.items[] | select(.status.allocation)] | length')" 1
model=claims
set_load "$(calculate "1.2 * $pod_rps")"
eventually 30 "the variant has a number" number_of_is claimed ">=" 1
set_load "$(calculate "4.3 * $pod_rps")"
eventually 300 "the GPUs of the driver are a limit" constrained_says claimed "inventory of B200: 0.0 of 2.0 free"
eventually 30 "both of them serve" ready_of_are claimed "==" 2
throughout 15 "nothing is asked for that has no device" pending_are claimed "==" 0
kubectl -n llm delete deployment,va,hpa claimed --wait=false >/dev/null
kubectl -n llm delete resourceclaimtemplate gpu >/dev/null
kubectl delete resourceslice,node claimed-0 >/dev/null
kubectl delete deviceclass gpu.nvidia.com >/dev/null

model=llama
for i in deployment va hpa; do kubectl -n llm delete "$i" cheap dear --wait=false >/dev/null; done
kubectl delete node cheap-0 cheap-1 dear-0 >/dev/null
install_chart
route_api_server_to "$wva_port"
baseline
