# shellcheck shell=bash
# (51) KEDA's call alone makes a variant: a ScaledObject of the real KEDA whose trigger has only modelID and variantCost scales its Deployment with
# load and back. wva may get ScaledObjects, and not list them. KEDA calls one instance and another one decides; a restart of both keeps the number
# before KEDA calls again; a VariantAutoscaling on the same Deployment takes over, and its number is what the call gets; a deleted ScaledObject has none.

. "$e2e/keda.sh"
choose_port scaler_port
choose_port second_scaler_port
choose_port second_port

scaled_is() { is "$(kubectl -n llm get deployment called -o jsonpath='{.spec.replicas}') $1 $2"; }
called_number() {
  curl --fail --silent --show-error --max-time 5 --cacert "$CLUSTER_DIR/wva-ca.crt" --cert "$certificates/user.crt" --key "$certificates/user.key" \
    --connect-to "wva.$release_namespace.svc:443:127.0.0.1:$wva_port" \
    "https://wva.$release_namespace.svc$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dby-call" | jq -r '.items[0].value'
}
called_number_is() { is "$(called_number) $1 $2"; }
has_no_number() { ! called_number 2>/dev/null; }
is_noted() { kubectl -n "$release_namespace" get configmap wva-state-calls-0 -o jsonpath='{.data.entries}' | grep -F '"name":"by-call"'; }
may() { kubectl auth can-i "$1" scaledobjects.keda.sh -n llm --as "system:serviceaccount:$release_namespace:wva" || true; }
leads() { kubectl -n "$release_namespace" get lease -o jsonpath='{.items[*].spec.holderIdentity}' | grep -F "$1"; }
start_both() {
  WVA_ARGS="--annotated-autoscalers=false --external-scaler-port $second_scaler_port" start_wva wva-1 "$second_port"
  eventually 60 "wva-1 leads" leads wva-1
  WVA_ARGS="--annotated-autoscalers=false --external-scaler-port $scaler_port" start_wva wva-0 "$wva_port"
}

chart=(--set annotatedAutoscalers=false --set externalScaler.enabled=true)
stop wva-0
install_chart "${chart[@]}"
WVA_ARGS="--annotated-autoscalers=false --external-scaler-port $scaler_port" baseline
stop wva-0
start_both
trust_wva
start_keda
keda_owns_external_metrics "${chart[@]}"
assert_eq "wva may list ScaledObjects" "$(may list)" no
assert_eq "wva may get ScaledObjects" "$(may get)" yes

keda_may_read
kubectl apply -f - >/dev/null <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: called, namespace: llm}
spec:
  replicas: 1
  selector: {matchLabels: {app: called}}
  template:
    metadata:
      labels: {app: called, llm-d.ai/model: called}
      annotations:
        pod-create.stage.kwok.x-k8s.io/delay: 1s
        pod-create.stage.kwok.x-k8s.io/jitter-delay: 1s
        pod-ready.stage.kwok.x-k8s.io/delay: 4s
        pod-ready.stage.kwok.x-k8s.io/jitter-delay: 4s
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: vllm, image: vllm/vllm-openai, ports: [{name: http, containerPort: 8000}]}]
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
metadata: {name: by-call, namespace: llm}
spec:
  scaleTargetRef: {name: called}
  minReplicaCount: 1
  maxReplicaCount: 6
  pollingInterval: 5
  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 0}}}}
  triggers:
  - type: external-push
    metadata: {scalerAddress: "wva.$release_namespace.svc:$scaler_port", enableTLS: "true", modelID: called, variantCost: "2.5"}
    authenticationRef: {name: wva}
YAML
eventually 60 "KEDA's call to wva-0 makes a variant, and wva-1 decides about it" called_number_is "==" 1
eventually 30 "both instances are told" is_noted
model=called
set_load "$(calculate "2.3 * $pod_rps")"
eventually 180 "load above the capacity of 2 pods: KEDA follows the number" scaled_is ">=" 3

# A restart, during which nobody calls.
stop keda-operator
stop wva-0
stop wva-1
start_both
eventually 30 "after a restart it has its number, although nobody called since" called_number_is ">=" 3
start_operator
throughout 20 "and KEDA keeps the replicas" scaled_is ">=" 3

# A VariantAutoscaling on the same Deployment decides, and the call gets its number.
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: owner, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: called}
  modelID: called
  minReplicas: 1
  maxReplicas: 2
YAML
eventually 60 "a VariantAutoscaling on the same Deployment takes over" scaled_is "==" 2
kubectl -n llm delete va owner >/dev/null
eventually 120 "and hands it back when it is deleted" scaled_is ">=" 3

set_load 0
eventually 240 "without load it goes back to its minimum" scaled_is "==" 1
kubectl -n llm delete scaledobject by-call --timeout=60s >/dev/null
eventually 60 "a deleted ScaledObject has no number" has_no_number
kubectl -n llm delete triggerauthentication/wva secret/keda-user role/keda rolebinding/keda deployment/called --timeout=60s >/dev/null
model=llama
for name in keda-adapter keda-operator wva-1 wva-0; do stop "$name"; done
give_back_external_metrics
