# shellcheck shell=bash
# The real KEDA for cases that source this: its operator and its metrics server, and certificates for both and for a user named keda.

keda_tools=$("$e2e/build-tools" keda)
certificates=$CLUSTER_DIR/keda
external=v1beta1.external.metrics.k8s.io

# certificate NAME SUBJECT CA: writes NAME.crt and NAME.key
certificate() {
  openssl req -newkey rsa:2048 -nodes -keyout "$certificates/$1.key" -subj "$2" -out "$certificates/$1.csr" 2>/dev/null
  openssl x509 -req -in "$certificates/$1.csr" -CA "$3.crt" -CAkey "$3.key" -CAcreateserial -days 1 -out "$certificates/$1.crt" \
    -extfile <(printf 'subjectAltName=DNS:localhost\nextendedKeyUsage=clientAuth,serverAuth') 2>/dev/null
}

# start_keda: both programs run and are ready, with all rights.
start_keda() {
  local port operator_port probe_port operator_metrics adapter_metrics
  for port in operator_port probe_port operator_metrics adapter_port adapter_metrics; do choose_port $port; done
  mkdir -p "$certificates"
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$certificates/ca.key" -out "$certificates/ca.crt" -subj /CN=keda -days 1 2>/dev/null
  certificate tls /CN=keda-operator "$certificates/ca"
  certificate user /CN=keda "$CLUSTER_DIR/pki/ca"
  kubectl create namespace keda --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl apply --server-side -f "$keda_tools/keda-crds.yaml" >/dev/null
  eventually 30 "KEDA's definitions are known" kubectl wait --for=condition=Established crd/scaledobjects.keda.sh crd/triggerauthentications.keda.sh --timeout=30s
  spawn_keda keda-operator --cert-dir "$certificates" --metrics-bind-address "127.0.0.1:$operator_metrics" \
    --health-probe-bind-address "127.0.0.1:$probe_port" --metrics-service-bind-address "127.0.0.1:$operator_port" \
    --enable-apiservice-patching=false --enable-webhook-patching=false
  await_http keda-operator 60 "http://127.0.0.1:$probe_port/readyz"
  spawn_keda keda-adapter --secure-port "$adapter_port" --port "$adapter_metrics" --bind-address 127.0.0.1 --cert-dir "$certificates" \
    --tls-cert-file "$certificates/tls.crt" --tls-private-key-file "$certificates/tls.key" \
    --metrics-service-address "localhost:$operator_port" --lister-kubeconfig "$CLUSTER_DIR/admin.kubeconfig" \
    --authentication-kubeconfig "$CLUSTER_DIR/admin.kubeconfig" --authorization-kubeconfig "$CLUSTER_DIR/admin.kubeconfig"
  await_http keda-adapter 60 --insecure "https://127.0.0.1:$adapter_port/healthz"
}
spawn_keda() {
  KUBECONFIG=$CLUSTER_DIR/admin.kubeconfig POD_NAMESPACE=keda KEDA_CLUSTER_OBJECT_NAMESPACE=keda WATCH_NAMESPACE="" spawn "$1" "$keda_tools/$1" "${@:2}"
}

# keda_owns_external_metrics: its metrics server answers the group, until give_back_external_metrics.
keda_owns_external_metrics() {
  kubectl get apiservice "$external" -o json | jq 'del(.status, .metadata.uid, .metadata.resourceVersion)' >"$CLUSTER_DIR/apiservice.json"
  kubectl -n keda create service externalname keda-metrics --external-name localhost --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  jq --argjson port "$adapter_port" '.metadata = {name: .metadata.name} | .spec.service = {namespace: "keda", name: "keda-metrics", port: $port}
    | .spec.insecureSkipTLSVerify = true | del(.spec.caBundle)' "$CLUSTER_DIR/apiservice.json" | kubectl replace -f - >/dev/null
  eventually 60 "KEDA owns external metrics" is_available
}
give_back_external_metrics() { kubectl replace -f "$CLUSTER_DIR/apiservice.json" >/dev/null; }
