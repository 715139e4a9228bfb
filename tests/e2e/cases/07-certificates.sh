# shellcheck shell=bash
# (7) A CA is replaced while HPAs read: no read fails, the API never becomes unavailable. A caBundle that somebody breaks is repaired;
# with a certificate of the user's it is not ours to repair, but it's told: condition, event, metric.

apiservice=v1beta1.external.metrics.k8s.io
secret=wva-tls

stop wva-0
WVA_ARGS="--ca-settle-duration 5s" start_wva wva-0 "$wva_port"
WVA_ARGS="--ca-settle-duration 5s" start_wva wva-1 "$second_port"
start_balancer "$balancer_port" "$wva_port" "$second_port"
route_api_server_to "$balancer_port"
eventually 60 "two instances behind a balancer: the API server reaches them" is_available
eventually 30 "and reads a number" value_is ">=" 1

# ---- what others see meanwhile, twice a second

watch_reads() {
  while true; do
    if actual=$(metric); then echo "ok $actual"; else echo "bad $(date +%T) $actual"; fi >>"$CLUSTER_DIR/reads"
    available >>"$CLUSTER_DIR/available"
    echo >>"$CLUSTER_DIR/available"
    sleep 0.5
  done
}
rm -f "$CLUSTER_DIR/reads" "$CLUSTER_DIR/available"
watch_reads &
watcher=$!
trap 'kill $watcher 2>/dev/null || true' EXIT

# of_secret KEY: a PEM text of the Secret
of_secret() { kubectl -n "$release_namespace" get secret "$secret" -o go-template="{{index .data \"$1\" | base64decode}}"; }
bundle() { kubectl get apiservice "$apiservice" -o jsonpath='{.spec.caBundle}' | base64 -d; }
certificates() { grep -c BEGIN; }
# shown PORT: the issuer of the leaf that an instance shows
shown() {
  openssl s_client -connect "127.0.0.1:$1" -servername "wva.$release_namespace.svc" </dev/null 2>/dev/null | openssl x509 -noout -issuer
}
bundle_has() { local n; n=$(bundle | certificates); echo "$n in caBundle"; [ "$n" = "$1" ]; }
both_show_another_issuer() {
  local first second
  first=$(shown "$wva_port") && second=$(shown "$second_port") && echo "$first" && [ "$first" = "$second" ] && [ "$first" != "$old_issuer" ]
}

old_issuer=$(shown "$wva_port")
old_ca=$(of_secret ca.crt)
kubectl -n "$release_namespace" annotate secret "$secret" --overwrite "wva.llmd.ai/rotate-ca=$SECONDS" >/dev/null
eventually 10 "asked for a new CA: it is announced beside the old one" bundle_has 2
assert_eq "while the certificate is still the old CA's" "$(shown "$wva_port")" "$old_issuer"
eventually 20 "then both instances serve with a certificate of the new CA" both_show_another_issuer
eventually 20 "and the old CA is dropped" bundle_has 1
[[ $(bundle) != *"$(sed -n 2p <<<"$old_ca")"* ]] || failed "the CA that is left is the old one"
passed "the CA that is left is the new one"

# A new connection of the API server, with nothing but the new CA: both instances, one after the other.
stop wva-1
eventually 20 "a number, with the old CA gone and one instance stopped" value_is ">=" 1

kill $watcher
reads=$(grep -c ^ok "$CLUSTER_DIR/reads")
[ "$(grep -vc '^Available=True$' <(grep . "$CLUSTER_DIR/available"))" = 0 ] || failed "the API became unavailable: $(sort "$CLUSTER_DIR/available" | uniq -c | xargs)"
! grep ^bad "$CLUSTER_DIR/reads" || failed "reads failed"
passed "meanwhile no read failed and the API stayed available: $reads reads"

# ---- somebody breaks the bundle

condition() {
  kubectl get apiservice "$apiservice" -o jsonpath='{.status.conditions[?(@.type=="CABundleVerified")].status} {.status.conditions[?(@.type=="CABundleVerified")].message}'
}
condition_is() { local actual; actual=$(condition); echo "CABundleVerified=$actual"; [[ $actual == $1* ]]; }
told() {
  local actual
  actual=$(kubectl -n default get events --field-selector "involvedObject.name=$apiservice,reason=$1" -o jsonpath='{.items[*].message}')
  echo "$1: $actual"
  [ -n "$actual" ]
}
break_bundle() {
  kubectl patch apiservice "$apiservice" --type merge --field-manager somebody \
    -p "{\"spec\":{\"caBundle\":\"$(base64 -w0 <"$CLUSTER_DIR/pki/ca.crt")\"}}" >/dev/null
}
available_condition() { kubectl get apiservice "$apiservice" -o jsonpath='{range .status.conditions[*]}{.type} {end}'; }

eventually 10 "the program's own check of the bundle" condition_is True
assert_eq "beside the API server's condition" "$(available_condition | tr ' ' '\n' | sort | xargs)" "Available CABundleVerified"
right=$(bundle)
break_bundle
repaired() { [ "$(bundle)" = "$right" ] && echo "as before"; }
eventually 12 "somebody else overwrites caBundle: the program writes it anew" repaired
eventually 10 "and says so" told CABundleRepaired

# ---- with a certificate of the user's

stop haproxy
stop wva-0
certificate_of_the_user() {
  certificate user-serving ca /CN=wva "subjectAltName=DNS:wva.$release_namespace.svc"
  mkdir -p "$CLUSTER_DIR/user-tls"
  cp "$CLUSTER_DIR/pki/user-serving.crt" "$CLUSTER_DIR/user-tls/tls.crt"
  cp "$CLUSTER_DIR/pki/user-serving.key" "$CLUSTER_DIR/user-tls/tls.key"
}
certificate_of_the_user
route_api_server_to "$wva_port"
WVA_ARGS="--cert-dir $CLUSTER_DIR/user-tls" start_wva wva-0 "$wva_port"
eventually 30 "a certificate of the user's, caBundle of another CA: the condition says what the probe says" condition_is "False tls: failed to verify certificate: x509: certificate signed by unknown authority"
eventually 10 "an event too" told CABundleNotVerified
metric_is() {
  local actual
  actual=$(curl --silent --insecure --max-time 5 --header "Authorization: Bearer $(kubectl create token prober -n default)" "https://127.0.0.1:$wva_port/metrics" |
    grep '^wva_apiservice_ca_bundle_valid{apiservice="v1beta1.external')
  echo "${actual:-none}"
  [[ $actual == *" $1" ]]
}
kubectl -n default create serviceaccount prober >/dev/null
kubectl create clusterrole prober --verb get --non-resource-url /metrics >/dev/null
kubectl create clusterrolebinding prober --clusterrole prober --serviceaccount default:prober >/dev/null
eventually 5 "and a metric" metric_is 0
throughout 5 "caBundle is left to the user" repaired
break_bundle # to the right CA this time
eventually 40 "the user puts it right: so says the condition" condition_is True
eventually 5 "and the metric" metric_is 1
eventually 35 "and the API server" is_available

stop wva-0 # the next case starts one of its own, with a certificate of its own
