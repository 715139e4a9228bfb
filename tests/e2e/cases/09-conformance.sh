# shellcheck shell=bash
# (9) Every check of the conformance suite passes, `should` as well as `must`, directly and through the real aggregator.
# kubectl shows the numbers as a table and explains their fields, and an event warns that an HPA would add items up.

# shellcheck source-path=SCRIPTDIR/..
. "$e2e/conformance.sh"
CONFORMANCE=$("$e2e/build-tools" conformance)/conformance

trap withdraw_wva EXIT # also after a failure, because other cases need one model and the default chart
offer_wva

table=$(kubectl -n llm get wva_desired_replicas.external.metrics.k8s.io)
echo "$table"
assert_eq "kubectl get wva_desired_replicas: rows of both variants" "$(grep -cE '^(llama|mistral) ' <<<"$table")" 2
explained=$(kubectl explain wva_desired_replicas.items --api-version=external.metrics.k8s.io/v1beta1)
assert_eq "kubectl explain knows its fields" "$(grep -oE '^ +(metricName|timestamp|value)\b' <<<"$explained" | xargs)" "metricName timestamp value"
event_names_both() {
  local note
  note=$(kubectl -n llm get events --field-selector reason=SelectorMatchesSeveral -o jsonpath='{.items[0].message}') && echo "$note"
  [[ $note == *"2 variants (llama, mistral)"* ]]
}
eventually 20 "an event reports a selector that matches both" event_names_both

# conforms NAME SKIPS COMMAND...: prints failed checks and the suite's count. SKIPS checks do not apply this way (another identity, or answers of
# kube-apiserver itself), or to this server (metrics of pods, nodes and namespaces; a second server to compare with). Another number of skips
# fails, because a check would not have run.
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
conforms directly 59 conform_port "$wva_port" "$CLUSTER_DIR/wva-ca.crt" "wva.$release_namespace.svc"
conforms aggregated 89 conform_aggregated
