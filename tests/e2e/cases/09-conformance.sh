# shellcheck shell=bash
# (9) Every promise of the conformance suite holds, `should` as well as `must`: asked directly and through the real aggregator.

# shellcheck source-path=SCRIPTDIR/..
. "$e2e/conformance.sh"
CONFORMANCE=$("$e2e/build-tools" conformance)/conformance

trap withdraw_wva EXIT # also after a failure: other cases count on one model and the usual chart
offer_wva

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
