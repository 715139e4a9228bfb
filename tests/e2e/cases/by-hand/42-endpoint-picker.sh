# shellcheck shell=bash
# (42) A real endpoint picker (EPP) of the Gateway API's inference extension, with its flow control: a request for a model at zero waits
# there, wakes the model, and gets the new pod as its endpoint; then the idle model gets the number 0. The request is sent as a gateway sends it;
# the model server is the fleet's.

picker_tools=$("$e2e/build-tools" endpoint-picker)
for port in grpc_port health_port metrics_port; do choose_port $port; done
pid_of() { cut -d ' ' -f 1 "$CLUSTER_DIR/pids/$1"; }
crds=$(cd "$e2e/tools/endpoint-picker" && go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api-inference-extension)/config/crd/bases

start_picker() {
  KUBECONFIG=$CLUSTER_DIR/admin.kubeconfig spawn picker "$picker_tools/epp" --pool-name pool --pool-namespace llm --pool-group inference.networking.k8s.io \
    --grpc-port "$grpc_port" --grpc-health-port "$health_port" --metrics-port "$metrics_port" --metrics-endpoint-auth=false --secure-serving=false \
    --model-server-metrics-port "${FLEET_ADDR##*:}" --model-server-metrics-path /pods/llm/chat-0/metrics \
    --config-text '{"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig", "featureGates": ["flowControl"], "plugins": [{"type": "queue-scorer"}]}'
  await_http picker 60 "http://127.0.0.1:$metrics_port/metrics"
}
# queue_is NUMBER: what the EPP says about requests for chat; none before the first
queue_is() {
  local actual
  actual=$(curl --fail --silent "http://127.0.0.1:$metrics_port/metrics" | sed -n 's/^inference_extension_flow_control_queue_size{.*model_name="chat".*} //p')
  echo "${actual:-none}"
  [ "${actual:-none}" = "$1" ]
}
number_is() {
  local n
  n=$(kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dchat" | jq -r '.items[0].value')
  echo "$n"
  [ "$n" = "$1" ]
}
scale_is() { local n; n=$(kubectl -n llm get statefulset chat -o jsonpath='{.spec.replicas}') && echo "$n" && [ "$n" = "$1" ]; }
# answered FILE TEXT
answered() { cat "$1"; grep -q "$2" "$1"; }
# wakes ROUND: a request waits, wakes the model and gets its pod
wakes() {
  local began=$EPOCHREALTIME
  "$picker_tools/ask" "127.0.0.1:$grpc_port" chat >"$CLUSTER_DIR/answer" 2>&1 &
  eventually 20 "$1 request waits in the flow control, and wva scales the model" scale_is 1
  passed "from the request to the scale: $(seconds_since "$began") s"
  queue_is 1 >/dev/null || failed "$1 request does not wait: $(queue_is 1)"
  eventually 60 "its pod is Ready" pod_is_ready chat-0
  put_on_loopback chat-0
  eventually 60 "the request gets the pod" answered "$CLUSTER_DIR/answer" "endpoint 127.0.0.1:8000"
}

kubectl create configmap wva-model-scale-to-zero-config -n "$release_namespace" --from-literal default=$'enable_scale_to_zero: true\nretention_period: 20s' \
  --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl apply -f "$crds" >/dev/null
kubectl wait --for=condition=Established crd/inferencepools.inference.networking.k8s.io --timeout=30s >/dev/null
stop wva-0
install_chart --set wakeDirectly=true
WVA_ARGS=--wake-directly baseline
sed "s/\$FLEET_PORT/$metrics_port/; s#/pods/llm/picker-0/metrics#/metrics#" "$e2e/objects/pickers.yaml" |
  awk 'BEGIN { RS = "---\n"; ORS = "---\n" } !/earlier/' | kubectl apply -f - >/dev/null
eventually 60 "the pod of the endpoint picker is Ready" pod_is_ready picker-0
put_on_loopback picker-0
start_picker
# What is awake is measured by Prometheus.
cat >>"$CLUSTER_DIR/prometheus.yml" <<YAML
- job_name: picker
  static_configs: [{targets: ["127.0.0.1:$metrics_port"], labels: {namespace: llm, pod: picker-0}}]
YAML
kill -HUP "$(pid_of prometheus)"
kubectl apply -f - >/dev/null <<YAML
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: chat, namespace: llm}
spec:
  serviceName: chat
  replicas: 0
  selector: {matchLabels: {app: chat}}
  template:
    metadata: {labels: {app: chat, llm-d.ai/model: chat, pool: current}}
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: vllm, image: vllm/vllm-openai, ports: [{name: http, containerPort: 8000}]}]
---
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: chat, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: chat}
  modelID: chat
  minReplicas: 0
  maxReplicas: 2
YAML
throughout 10 "before the first request there is no queue, and nothing wakes" scale_is 0
eventually 0 "the EPP has no series of the model" queue_is none
wakes "the first"
eventually 10 "nothing waits any longer" queue_is 0
eventually 120 "idle by the EPP's queue and the engine's counters: the number is 0" number_is 0
# Nothing follows the number down here: the workload has no autoscaler.
kubectl -n llm scale statefulset chat --replicas=0 >/dev/null
stop picker
start_picker
eventually 0 "a new EPP has no series of the model" queue_is none
throughout 10 "and nothing wakes" scale_is 0
wakes "the next"

stop picker
sed -i '/^- job_name: picker/,$d' "$CLUSTER_DIR/prometheus.yml"
kill -HUP "$(pid_of prometheus)"
kubectl -n llm delete statefulset,va chat --wait=false >/dev/null
kubectl -n llm delete statefulset,service picker --wait=false >/dev/null
kubectl delete -f "$crds" >/dev/null
kubectl -n "$release_namespace" delete configmap wva-model-scale-to-zero-config >/dev/null
stop wva-0
install_chart
baseline
