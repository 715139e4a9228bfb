# shellcheck shell=bash
# (45) The real KEDA (operator and metrics server) owns external metrics and scales a model by the external scaler: a ScaledObject with a trigger of
# the type external-push goes from zero to the number as soon as a request waits, follows it, and goes back to zero. Without an answer KEDA keeps
# the replicas. KEDA authenticates with a certificate of a user, which RBAC allows to read the number in one namespace.

. "$e2e/keda.sh"
choose_port scaler_port

scaled_is() { is "$(kubectl -n llm get deployment pushed -o jsonpath='{.spec.replicas}') $1 $2"; }
pushed_number_is() { is "$(named_value pushed) == $1"; }
named_value() {
  curl --fail --silent --show-error --max-time 5 --cacert "$CLUSTER_DIR/wva-ca.crt" --cert "$certificates/user.crt" --key "$certificates/user.key" \
    --connect-to "wva.$release_namespace.svc:443:127.0.0.1:$wva_port" \
    "https://wva.$release_namespace.svc$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3D$1" | jq -r '.items[0].value'
}
scaled_object_says() { kubectl -n llm get scaledobject pushed -o json | jq -c '[.status.conditions[] | {(.type): .status}] | add' | grep -F "$1"; }
queue() { curl --fail --silent --show-error --output /dev/null -X POST "http://$FLEET_ADDR/queue?namespace=llm&pod=picker-0&model=pushed&waiting=$1&era=current"; }

# wva with its external scaler, and what the model sleeps and wakes by.
kubectl create configmap wva-model-scale-to-zero-config -n "$release_namespace" --from-literal default=$'enable_scale_to_zero: true\nretention_period: 20s' \
  --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl apply -f "$e2e/objects/inference-pool-crds.yaml" >/dev/null
sed "s/\$FLEET_PORT/${FLEET_ADDR##*:}/" "$e2e/objects/pickers.yaml" | kubectl apply -f - >/dev/null
eventually 60 "the endpoint picker is Ready" pod_is_ready picker-0
put_on_loopback picker-0
stop wva-0
WVA_ARGS="--external-scaler-port $scaler_port" baseline
trust_wva
queue 0

start_keda
keda_owns_external_metrics

# The model, KEDA's right to read its number, and the ScaledObject.
keda_may_read
kubectl apply -f - >/dev/null <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: pushed, namespace: llm}
spec:
  replicas: 1
  selector: {matchLabels: {app: pushed}}
  template:
    metadata:
      labels: {app: pushed, llm-d.ai/model: pushed, pool: current}
      annotations:
        pod-create.stage.kwok.x-k8s.io/delay: 1s
        pod-create.stage.kwok.x-k8s.io/jitter-delay: 1s
        pod-ready.stage.kwok.x-k8s.io/delay: 4s
        pod-ready.stage.kwok.x-k8s.io/jitter-delay: 4s
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: vllm, image: vllm/vllm-openai, ports: [{name: http, containerPort: 8000}]}]
---
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: pushed, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: pushed}
  modelID: pushed
  minReplicas: 0
  maxReplicas: 6
---
apiVersion: v1
kind: Secret
metadata: {name: keda-user, namespace: llm}
data: {crt: $(base64 -w0 <"$certificates/user.crt"), key: $(base64 -w0 <"$certificates/user.key"), ca: $(base64 -w0 <"$CLUSTER_DIR/wva-ca.crt")}
---
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata: {name: wva, namespace: llm}
spec:
  secretTargetRef:
  - {parameter: tlsClientCert, name: keda-user, key: crt}
  - {parameter: tlsClientKey, name: keda-user, key: key}
  - {parameter: caCert, name: keda-user, key: ca}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: pushed, namespace: llm}
spec:
  scaleTargetRef: {name: pushed}
  minReplicaCount: 0
  maxReplicaCount: 6
  pollingInterval: 5
  cooldownPeriod: 1
  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 0}}}}
  triggers:
  - type: external-push
    metadata: {scalerAddress: "wva.$release_namespace.svc:$scaler_port", enableTLS: "true", scaleTarget: pushed}
    authenticationRef: {name: wva}
YAML
eventually 60 "KEDA is answered" scaled_object_says '"Ready":"True"'
model=pushed
set_load "$(calculate "2.3 * $pod_rps")"
eventually 180 "load above the capacity of 2 pods: KEDA follows the number" scaled_is ">=" 3
model=llama
set_load 0
model=pushed
set_load 0
eventually 240 "the idle model: the number is 0" pushed_number_is 0
eventually 60 "and KEDA scales it to zero" scaled_is "==" 0
: >"$CLUSTER_DIR/pushes"
for ((round = 0; round < 5; round++)); do
  began=$EPOCHREALTIME
  queue 1
  until scaled_is ">=" 1 >/dev/null; do [ "${EPOCHREALTIME%.*}" -lt $((${began%.*} + 30)) ] || failed "KEDA does not wake the model"; sleep 0.05; done
  seconds_since "$began" >>"$CLUSTER_DIR/pushes"
  echo >>"$CLUSTER_DIR/pushes"
  queue 0
  eventually 120 "it sleeps again" scaled_is "==" 0
done
passed "from the first waiting request to the replicas that KEDA writes, with a poll every 5 s: $(sort -n "$CLUSTER_DIR/pushes" | tr -s '\n' ' ') s"
queue 1
eventually 30 "it wakes" scaled_is ">=" 1
stop wva-0
throughout 30 "without an answer KEDA keeps the replicas" scaled_is ">=" 1
kubectl -n llm delete scaledobject,triggerauthentication,secret,role,rolebinding,deployment,va --field-selector metadata.name!=llama --timeout=60s >/dev/null
stop keda-adapter
stop keda-operator
give_back_external_metrics
