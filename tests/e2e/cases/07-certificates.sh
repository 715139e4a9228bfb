# shellcheck shell=bash
# (7) A CA is replaced while HPAs read: no read fails, and the API never becomes unavailable. A caBundle that somebody overwrites is repaired.
# With a user's certificate wva does not repair it, but reports it: condition, event, metric.

apiservice=v1beta1.external.metrics.k8s.io
secret=wva-tls

stop wva-0
WVA_ARGS="--ca-settle-duration 5s" start_wva wva-0 "$wva_port"
WVA_ARGS="--ca-settle-duration 5s" start_wva wva-1 "$second_port"
start_balancer "$balancer_port" "$wva_port" "$second_port"
route_api_server_to "$balancer_port"
eventually 60 "two instances behind a load balancer: the API server reaches them" is_available
eventually 30 "the API server reads a number" value_is ">=" 1

# ---- reads and availability meanwhile, twice per second

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

# secret_value KEY: a PEM value of the Secret
secret_value() { kubectl -n "$release_namespace" get secret "$secret" -o go-template="{{index .data \"$1\" | base64decode}}"; }
bundle() { kubectl get apiservice "$apiservice" -o jsonpath='{.spec.caBundle}' | base64 -d; }
certificates() { grep -c BEGIN; }
# served_issuer PORT: the issuer of the leaf that an instance serves
served_issuer() {
  openssl s_client -connect "127.0.0.1:$1" -servername "wva.$release_namespace.svc" </dev/null 2>/dev/null | openssl x509 -noout -issuer
}
bundle_has() { local n; n=$(bundle | certificates); echo "$n in caBundle"; [ "$n" = "$1" ]; }
both_serve_another_issuer() {
  local first second
  first=$(served_issuer "$wva_port") && second=$(served_issuer "$second_port") && echo "$first" && [ "$first" = "$second" ] && [ "$first" != "$old_issuer" ]
}

old_issuer=$(served_issuer "$wva_port")
old_ca=$(secret_value ca.crt)
kubectl -n "$release_namespace" annotate secret "$secret" --overwrite "wva.llmd.ai/rotate-ca=$SECONDS" >/dev/null
eventually 10 "a new CA is requested: it is announced beside the old one" bundle_has 2
assert_eq "the served certificate is still signed by the old CA" "$(served_issuer "$wva_port")" "$old_issuer"
eventually 20 "then both instances serve a certificate of the new CA" both_serve_another_issuer
eventually 20 "the old CA is removed" bundle_has 1
[[ $(bundle) != *"$(sed -n 2p <<<"$old_ca")"* ]] || failed "the remaining CA is the old one"
passed "the remaining CA is the new one"

# Forces a new connection of the API server, which must be verified by the new CA alone.
stop wva-1
eventually 20 "a number, after the old CA is removed and one instance is stopped" value_is ">=" 1

kill $watcher
reads=$(grep -c ^ok "$CLUSTER_DIR/reads")
[ "$(grep -vc '^Available=True$' <(grep . "$CLUSTER_DIR/available"))" = 0 ] || failed "the API became unavailable: $(sort "$CLUSTER_DIR/available" | uniq -c | xargs)"
! grep ^bad "$CLUSTER_DIR/reads" || failed "reads failed"
passed "meanwhile no read failed and the API stayed available: $reads reads"

# ---- somebody overwrites the bundle

condition() {
  kubectl get apiservice "$apiservice" -o jsonpath='{.status.conditions[?(@.type=="CABundleVerified")].status} {.status.conditions[?(@.type=="CABundleVerified")].message}'
}
condition_is() { local actual; actual=$(condition); echo "CABundleVerified=$actual"; [[ $actual == $1* ]]; }
has_event() {
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

eventually 10 "wva's own check of the bundle passes" condition_is True
assert_eq "beside the API server's condition" "$(available_condition | tr ' ' '\n' | sort | xargs)" "Available CABundleVerified"
right=$(bundle)
break_bundle
repaired() { [ "$(bundle)" = "$right" ] && echo "restored"; }
eventually 12 "somebody overwrites caBundle: wva restores it" repaired
eventually 10 "an event says so" has_event CABundleRepaired

# ---- with a user's certificate

stop haproxy
stop wva-0
user_certificate() {
  certificate user-serving ca /CN=wva "subjectAltName=DNS:wva.$release_namespace.svc"
  mkdir -p "$CLUSTER_DIR/user-tls"
  cp "$CLUSTER_DIR/pki/user-serving.crt" "$CLUSTER_DIR/user-tls/tls.crt"
  cp "$CLUSTER_DIR/pki/user-serving.key" "$CLUSTER_DIR/user-tls/tls.key"
}
user_certificate
route_api_server_to "$wva_port"
WVA_ARGS="--cert-dir $CLUSTER_DIR/user-tls" start_wva wva-0 "$wva_port"
eventually 30 "a user's certificate, caBundle of another CA: the condition has the text of the API server's probe" condition_is "False tls: failed to verify certificate: x509: certificate signed by unknown authority"
eventually 10 "an event too" has_event CABundleNotVerified
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
eventually 5 "a metric too" metric_is 0
throughout 5 "wva does not change caBundle" repaired
break_bundle # to the correct CA this time
eventually 40 "the user corrects it: the condition is True" condition_is True
eventually 5 "the metric is 1" metric_is 1
eventually 35 "the API server reaches wva" is_available

stop wva-0 # the next case starts an instance with its own certificate
