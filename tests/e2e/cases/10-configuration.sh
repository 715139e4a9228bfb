# shellcheck shell=bash
# (10) ConfigMaps tune decisions while wva runs, with the rights that the chart grants: the release's, and the namespace's in its place.
# Errors in them create events on them, and the last good text stays in force.

allow 2
set_load "$(calculate "0.4 * $pod_rps")" # well below one pod's capacity; requests that wait from the previous case must be served first
eventually 240 "load for one pod, maximum 2: the number is 1" value_is "==" 1
throughout 20 "the number stays 1" value_is "==" 1

logged() { grep -F -- "$1" "$CLUSTER_DIR/logs/wva-0.log" | tail -n 1 | grep .; }
is_reported() {
  kubectl -n "$1" get events --field-selector reason=InvalidConfiguration,involvedObject.name=wva-saturation-scaling-config \
    -o jsonpath='{.items[*].message}' | grep -F -- "$2"
}

configure "$release_namespace" 'kvCacheThreshold: 0.81'
eventually 10 "a ConfigMap in the release namespace takes effect" logged "global.default.saturation.kvCacheThreshold: 0.8 → 0.81"
configure llm 'kvSpareTrigger: 0.79'
eventually 10 "a ConfigMap in the variant's namespace takes effect there" logged "namespaces: none → "
eventually 40 "almost all of the KV cache must be spare: one more replica" value_is "==" 2

configure llm 'kvSpareTrigger: 79'
eventually 10 "an invalid entry creates an event on its ConfigMap" is_reported llm "kvSpareTrigger 79 is out of range: must be 0 to 1; its last good text stays"
configure "$release_namespace" 'kvCacheTreshold: 0.8'
eventually 10 "also in the release namespace" is_reported "$release_namespace" 'kvCacheTreshold is not a field'
throughout 10 "the number stays" value_is "==" 2

configure "$release_namespace" 'enableLimiter: true'
eventually 10 "no right to list nodes: the log says what to set" logged "cannot watch Nodes"
install_chart --set limits.inventory=true
route_api_server_to "$wva_port"
eventually 40 "with limits.inventory, nodes are listed" logged "watching Nodes again"

kubectl -n llm delete configmap wva-saturation-scaling-config >/dev/null
kubectl -n "$release_namespace" delete configmap wva-saturation-scaling-config >/dev/null
eventually 10 "ConfigMaps deleted: the defaults apply" logged "ConfigMap deleted: its entries no longer count"
install_chart
route_api_server_to "$wva_port"
