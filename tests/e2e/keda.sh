# shellcheck shell=bash
# The real KEDA for cases that source this: its operator and its metrics server, and certificates for both and for a user named keda.

keda_tools=$("$e2e/build-tools" keda)
certificates=$CLUSTER_DIR/keda
external=v1beta1.external.metrics.k8s.io

# certificate NAME SUBJECT CA: writes NAME.crt and NAME.key
certificate() {
  openssl req -newkey rsa:2048 -nodes -keyout "$certificates/$1.key" -subj "$2" -out "$certificates/$1.csr" 2>/dev/null
  openssl x509 -req -in "$certificates/$1.csr" -CA "$3.crt" -CAkey "$3.key" -CAcreateserial -days 1 -out "$certificates/$1.crt" \
    -extfile <(printf 'subjectAltName=DNS:localhost,DNS:keda-metrics.keda.svc\nextendedKeyUsage=clientAuth,serverAuth') 2>/dev/null
}

# start_keda: both programs run and are ready, with all rights.
start_keda() {
  local port adapter_metrics
  for port in operator_port probe_port operator_metrics adapter_port adapter_metrics; do choose_port $port; done
  mkdir -p "$certificates"
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$certificates/ca.key" -out "$certificates/ca.crt" -subj /CN=keda -days 1 2>/dev/null
  certificate tls /CN=keda-operator "$certificates/ca"
  certificate user /CN=keda "$CLUSTER_DIR/pki/ca"
  kubectl create namespace keda --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl apply --server-side -f "$keda_tools/keda-crds.yaml" >/dev/null
  eventually 30 "KEDA's definitions are known" kubectl wait --for=condition=Established crd/scaledobjects.keda.sh crd/triggerauthentications.keda.sh --timeout=30s
  start_operator
  spawn_keda keda-adapter --secure-port "$adapter_port" --port "$adapter_metrics" --bind-address 127.0.0.1 --cert-dir "$certificates" \
    --tls-cert-file "$certificates/tls.crt" --tls-private-key-file "$certificates/tls.key" \
    --metrics-service-address "localhost:$operator_port" --lister-kubeconfig "$CLUSTER_DIR/admin.kubeconfig" \
    --authentication-kubeconfig "$CLUSTER_DIR/admin.kubeconfig" --authorization-kubeconfig "$CLUSTER_DIR/admin.kubeconfig"
  await_http keda-adapter 60 --insecure "https://127.0.0.1:$adapter_port/healthz"
}
# start_operator [ARGUMENT...]
start_operator() {
  spawn_keda keda-operator --cert-dir "$certificates" --metrics-bind-address "127.0.0.1:$operator_metrics" \
    --health-probe-bind-address "127.0.0.1:$probe_port" --metrics-service-bind-address "127.0.0.1:$operator_port" \
    --enable-apiservice-patching=false --enable-webhook-patching=false "$@"
  await_http keda-operator 60 "http://127.0.0.1:$probe_port/readyz"
}
# Both resolve the name of wva's Service to loopback, where wva listens, so that they verify it in wva's certificate as in a cluster.
spawn_keda() {
  echo "127.0.0.1 localhost wva.$release_namespace.svc" >"$certificates/hosts"
  # shellcheck disable=SC2016 # expanded by the inner shell
  KUBECONFIG=$CLUSTER_DIR/admin.kubeconfig POD_NAMESPACE=keda KEDA_CLUSTER_OBJECT_NAMESPACE=keda WATCH_NAMESPACE="" spawn "$1" \
    unshare --map-root-user --mount sh -c 'mount --bind "$0" /etc/hosts && exec "$@"' "$certificates/hosts" "$keda_tools/$1" "${@:2}"
}

# keda_owns_external_metrics [HELM_ARGUMENT...]: its metrics server answers the group, and the chart leaves that to it, until
# give_back_external_metrics [HELM_ARGUMENT...].
keda_owns_external_metrics() {
  install_chart --set apiService.enabled=false "$@"
  kubectl -n keda create service externalname keda-metrics --external-name localhost --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl create -f - >/dev/null <<YAML
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: $external}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: keda, name: keda-metrics, port: $adapter_port}
YAML
  eventually 60 "KEDA owns external metrics" is_available
}
give_back_external_metrics() {
  kubectl delete apiservice "$external" >/dev/null
  install_chart "$@"
  baseline
  eventually 60 "wva owns external metrics again" is_available
}

# keda_may_read: its user may read the numbers in the namespace of the models
keda_may_read() {
  kubectl apply -f - >/dev/null <<'YAML'
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: keda, namespace: llm}
rules: [{apiGroups: [external.metrics.k8s.io], resources: [wva_desired_replicas], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: keda, namespace: llm}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: keda}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: keda}]
YAML
}
