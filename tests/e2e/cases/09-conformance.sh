# shellcheck shell=bash
# (9) Every promise of the conformance suite holds, `should` as well as `must`: asked directly and through the real aggregator.

# shellcheck source-path=SCRIPTDIR/..
. "$e2e/conformance.sh"
CONFORMANCE=$("$e2e/build-tools" conformance)/conformance

add_second_variant
trap remove_second_variant EXIT # also after a failure: other cases count on one model
eventually 60 "two variants have a number" both_have_numbers
kubectl -n "$release_namespace" get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$BED/wva-ca.crt"
wva_series

# conforms NAME COMMAND...: prints what failed, and ends with the suite's own count.
conforms() {
  local name=$1 status=0
  shift
  "$@" >"$BED/conformance-$name" || status=$?
  grep '^FAIL' "$BED/conformance-$name" || true
  [ $status = 0 ] || failed "conformance, $name: $(tail -n 1 "$BED/conformance-$name")"
  passed "conformance, $name: $(tail -n 1 "$BED/conformance-$name")"
}

conforms directly conform_port "$wva_port" "$BED/wva-ca.crt" "wva.$release_namespace.svc"
conforms aggregated conform_aggregated
