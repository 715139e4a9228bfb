# shellcheck shell=bash
# (27) Two releases share a namespace and a Lease by mistake. They then act as one installation: one instance decides, both answer its number, and
# neither breaks the other's certificate.

hold_at 3
helm install other "$root/charts/wva" -n "$release_namespace" --set apiService.enabled=false --skip-crds >"$CLUSTER_DIR/helm.other" 2>&1 ||
  passed "helm refuses the second release: $(tail -n 1 "$CLUSTER_DIR/helm.other")"
start_wva wva-1 "$second_port" # with wva's account, but another Service name
stop wva-1
WVA_UNDER="env WVA_SERVICE_NAME=other" WVA_ARGS="--record-snapshots 8" start_wva wva-1 "$second_port"
trust_wva
begin_history "wva-0:$wva_port" "wva-1:$second_port"
throughout 40 "two releases on one Lease: the number stays" value_is "==" 3
eventually 0 "the API server reaches it" is_available
allow 4
eventually 60 "and decisions continue" value_is "==" 4
history_holds wva-0
assert_eq "answers without a number, of $(wc -l <"$CLUSTER_DIR/history.answers")" "$(answers_that 'status != 200' first)" 0
versions=$(kubectl -n "$release_namespace" get secret wva-tls -o jsonpath='{.metadata.resourceVersion}')
sleep 15
assert_eq "the shared Secret is not rewritten: its version" "$(kubectl -n "$release_namespace" get secret wva-tls -o jsonpath='{.metadata.resourceVersion}')" "$versions"
stop wva-1
helm uninstall other -n "$release_namespace" >/dev/null 2>&1 || true
