# shellcheck shell=bash
# Certificates and kubeconfigs of one bed, in $BED/pki and $BED/*.kubeconfig. Sourced by bed.
# Two authorities, as in a real cluster: one for servers and users, one for the front proxy (the aggregator's client certificate).

make_pki() {
  mkdir -p "$BED/pki"
  authority ca bed-ca
  authority front-proxy-ca bed-front-proxy-ca
  certificate apiserver ca /CN=kube-apiserver \
    "subjectAltName=IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
  certificate front-proxy-client front-proxy-ca /CN=front-proxy-client
  # Service account tokens are signed with RS256, so this key alone is RSA.
  openssl genrsa -out "$BED/pki/service-accounts.key" 2048 2>/dev/null

  user admin /O=system:masters/CN=admin
  user kube-controller-manager /CN=system:kube-controller-manager
  user kube-scheduler /CN=system:kube-scheduler
  user kwok /O=system:masters/CN=kwok # it plays every kubelet
  user prometheus /CN=prometheus
  user fleet /CN=fleet
  chmod -R go-rwx "$BED/pki"
}

authority() {
  issue "$1" "/CN=$2" -addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign,cRLSign
}

# certificate NAME AUTHORITY SUBJECT [EXTENSION]: good for servers and clients.
certificate() {
  issue "$1" "$3" -CA "$BED/pki/$2.crt" -CAkey "$BED/pki/$2.key" -addext basicConstraints=CA:false \
    -addext extendedKeyUsage=serverAuth,clientAuth ${4:+-addext "$4"}
}

issue() {
  local name=$1 subject=$2
  shift 2
  # A configuration without sections: openssl's own would add CA:true to every certificate.
  openssl req -x509 -config <(printf '[req]\ndistinguished_name=subject\n[subject]\n') -newkey ec \
    -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "$subject" \
    -keyout "$BED/pki/$name.key" -out "$BED/pki/$name.crt" "$@" 2>"$BED/pki/openssl.err" ||
    { cat "$BED/pki/openssl.err" >&2; return 1; }
}

user() {
  certificate "$1" ca "$2"
  kubeconfig "$1" "{client-certificate: $BED/pki/$1.crt, client-key: $BED/pki/$1.key}"
}

# kubeconfig NAME CREDENTIAL: writes $BED/NAME.kubeconfig for a user with this credential (YAML).
kubeconfig() {
  cat >"$BED/$1.kubeconfig" <<YAML
apiVersion: v1
kind: Config
current-context: bed
contexts: [{name: bed, context: {cluster: bed, user: $1}}]
clusters: [{name: bed, cluster: {server: "$API_URL", certificate-authority: $BED/pki/ca.crt}}]
users: [{name: $1, user: $2}]
YAML
  chmod 600 "$BED/$1.kubeconfig"
}
