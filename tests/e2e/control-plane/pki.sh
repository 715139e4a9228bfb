# shellcheck shell=bash
# Certificates and kubeconfigs of a test cluster, in $CLUSTER_DIR/pki and $CLUSTER_DIR/*.kubeconfig. Sourced by cluster.
# Two CAs, as in a real cluster: one for servers and users, one for the front proxy (the aggregator's client certificate).

make_pki() {
  mkdir -p "$CLUSTER_DIR/pki"
  authority ca test-ca
  authority front-proxy-ca test-front-proxy-ca
  certificate apiserver ca /CN=kube-apiserver \
    "subjectAltName=IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
  certificate front-proxy-client front-proxy-ca /CN=front-proxy-client
  # Service account tokens are signed with RS256, so this key alone is RSA.
  openssl genrsa -out "$CLUSTER_DIR/pki/service-accounts.key" 2048 2>/dev/null

  user admin /O=system:masters/CN=admin
  user kube-controller-manager /CN=system:kube-controller-manager
  user kube-scheduler /CN=system:kube-scheduler
  user kwok /O=system:masters/CN=kwok # it simulates every kubelet
  user prometheus /CN=prometheus
  user fleet /CN=fleet
  chmod -R go-rwx "$CLUSTER_DIR/pki"
}

authority() {
  issue "$1" "/CN=$2" -addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign,cRLSign
}

# certificate NAME AUTHORITY SUBJECT [EXTENSION]: valid for servers and clients.
certificate() {
  issue "$1" "$3" -CA "$CLUSTER_DIR/pki/$2.crt" -CAkey "$CLUSTER_DIR/pki/$2.key" -addext basicConstraints=CA:false \
    -addext extendedKeyUsage=serverAuth,clientAuth ${4:+-addext "$4"}
}

issue() {
  local name=$1 subject=$2
  shift 2
  # An empty configuration, because openssl's default would add CA:true to every certificate.
  openssl req -x509 -config <(printf '[req]\ndistinguished_name=subject\n[subject]\n') -newkey ec \
    -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "$subject" \
    -keyout "$CLUSTER_DIR/pki/$name.key" -out "$CLUSTER_DIR/pki/$name.crt" "$@" 2>"$CLUSTER_DIR/pki/openssl.err" ||
    { cat "$CLUSTER_DIR/pki/openssl.err" >&2; return 1; }
}

user() {
  certificate "$1" ca "$2"
  kubeconfig "$1" "{client-certificate: $CLUSTER_DIR/pki/$1.crt, client-key: $CLUSTER_DIR/pki/$1.key}"
}

# kubeconfig NAME CREDENTIAL: writes $CLUSTER_DIR/NAME.kubeconfig for a user with this credential (YAML).
kubeconfig() {
  cat >"$CLUSTER_DIR/$1.kubeconfig" <<YAML
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: $1}}]
clusters: [{name: test, cluster: {server: "$API_URL", certificate-authority: $CLUSTER_DIR/pki/ca.crt}}]
users: [{name: $1, user: $2}]
YAML
  chmod 600 "$CLUSTER_DIR/$1.kubeconfig"
}
