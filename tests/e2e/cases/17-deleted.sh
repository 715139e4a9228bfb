# shellcheck shell=bash
# (17) wva's objects are deleted while it runs: the Lease, the state objects, the Secret with the certificates, and the ConfigMap that tunes it.
# Reads continue with the same number, and wva recreates its objects.

hold_at 3
two_instances
eventually 20 "both answer the same number" instance_values_are 3 3
begin_history "wva-0:$wva_port" "wva-1:$second_port"

for i in 1 2 3; do
  kubectl -n "$release_namespace" delete lease "$lease" >/dev/null
  sleep 2.5
done
eventually 20 "the Lease is deleted three times: an instance holds it again" holder_is wva-
throughout 6 "the number stays" value_is "==" 3

state_objects() {
  local n
  n=$(kubectl -n "$release_namespace" get configmap -l wva.llmd.ai/state -o name | wc -l)
  is "$n >= $1"
}
before=$(kubectl -n "$release_namespace" get configmap -l wva.llmd.ai/state -o name | wc -l)
is "$before >= 2" >/dev/null || failed "there are $before state objects"
kubectl -n "$release_namespace" delete configmap -l wva.llmd.ai/state >/dev/null
eventually 30 "the $before state objects are deleted: they are written again" state_objects "$before"

kubectl -n "$release_namespace" delete secret wva-tls >/dev/null
secret_exists() { kubectl -n "$release_namespace" get secret wva-tls -o name; }
eventually 20 "the Secret is deleted: it exists again" secret_exists
throughout 10 "reads through the API server continue" value_is "==" 3
eventually 10 "the APIService is available" is_available
eventually 10 "the instances still trust each other" instance_values_are 3 3

kubectl -n "$release_namespace" delete configmap wva-saturation-scaling-config >/dev/null
throughout 10 "the ConfigMap is deleted: the number stays" value_is "==" 3
analyzer_is saturation-percent

history_holds "wva-?*" # any instance may take a deleted Lease
assert_eq "numbers other than 3, of $(answers_that 'status == 200')" "$(answers_that 'status == 200 && value != 3' first)" 0
assert_eq "answers without a number, of $(wc -l <"$CLUSTER_DIR/history.answers")" "$(answers_that 'status != 200' first)" 0
