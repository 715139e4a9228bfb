# shellcheck shell=bash
# (9) Every promise of the conformance suite holds, `should` as well as `must`: asked directly and through the real aggregator.
# And people see with kubectl what there is: a table, its explanation, and the event that says that an HPA would add up.

# shellcheck source-path=SCRIPTDIR/..
. "$e2e/conformance.sh"
CONFORMANCE=$("$e2e/build-tools" conformance)/conformance

trap withdraw_wva EXIT # also after a failure: other cases count on one model and the usual chart
offer_wva

table=$(kubectl -n llm get wva_desired_replicas.external.metrics.k8s.io)
echo "$table"
assert_eq "kubectl get wva_desired_replicas: rows of both variants" "$(grep -cE '^(llama|mistral) ' <<<"$table")" 2
explained=$(kubectl explain wva_desired_replicas.items --api-version=external.metrics.k8s.io/v1beta1)
assert_eq "kubectl explain knows its fields" "$(grep -oE '^ +(metricName|timestamp|value)\b' <<<"$explained" | xargs)" "metricName timestamp value"
told_of_both() {
  local note
  note=$(kubectl -n llm get events --field-selector reason=SelectorMatchesSeveral -o jsonpath='{.items[0].message}') && echo "$note"
  [[ $note == *"2 variants (llama, mistral)"* ]]
}
eventually 20 "one selector for both is told in an event" told_of_both

# conforms NAME SKIPS COMMAND...: prints what failed, and ends with the suite's own count. SKIPS checks do not apply this way (another
# identity, or what kube-apiserver answers by itself): one more is a promise that was not looked at.
conforms() {
  local name=$1 skips=$2 status=0 counted
  shift 2
  "$@" >"$CLUSTER_DIR/conformance-$name" || status=$?
  grep '^FAIL' "$CLUSTER_DIR/conformance-$name" || true
  counted=$(tail -n 1 "$CLUSTER_DIR/conformance-$name")
  [ $status = 0 ] || failed "conformance, $name: $counted"
  [[ $counted == *", 0 failed, $skips skipped" ]] || { grep '^skip' "$CLUSTER_DIR/conformance-$name"; failed "conformance, $name: $counted, expected $skips skipped"; }
  passed "conformance, $name: $counted"
}

token=$(metrics_reader_token)
conforms directly 8 conform_port "$wva_port" "$CLUSTER_DIR/wva-ca.crt" "wva.$release_namespace.svc"
conforms aggregated 38 conform_aggregated
