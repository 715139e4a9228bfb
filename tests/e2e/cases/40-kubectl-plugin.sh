# shellcheck shell=bash
# (40) `kubectl wva` through the real aggregator, with nothing but RBAC: all variants with their reasons, one explanation, and what holds a
# number back (a quota). Who may not read is told which right is missing. Without the APIService, the plugin says what to install; and
# namespaces are deleted while the group is served and after it is gone.

plugin_dir=$CLUSTER_DIR/plugin
mkdir -p "$plugin_dir"
ln -sf "$(realpath "$WVA")" "$plugin_dir/kubectl-wva"
# plugin USER ARGUMENT...: runs the plugin as kubectl does, as this user. Prints its output, and fails as it does.
plugin() { PATH=$plugin_dir:$PATH KUBECONFIG=$CLUSTER_DIR/$1.kubeconfig kubectl wva "${@:2}" 2>&1; }
# plugin_says TEXT USER ARGUMENT...: the output contains TEXT, regardless of line breaks
plugin_says() {
  local actual text=$1
  actual=$(plugin "${@:2}" | tr -s ' \n' ' ') || true
  grep -oF -- "$text" <<<"$actual" | head -n 1 | grep . || { echo "$actual"; return 1; }
}
# refused STATUS USER ARGUMENT...: the exit code of the plugin is STATUS
refused() { local status=0; plugin "${@:2}" >/dev/null || status=$?; echo $status; [ $status = "$1" ]; }
documented() { kubectl explain explanations.desired --api-version=decisions.wva.llmd.ai/v1alpha1 | grep "Desired replicas"; }
explanations_available() {
  local actual
  actual=$(kubectl get apiservice v1alpha1.decisions.wva.llmd.ai -o jsonpath='{.status.conditions[?(@.type=="Available")].status}')
  echo "Available=$actual"
  [ "$actual" = True ]
}

# explanations_are there|absent: whether the APIService exists
explanations_are() {
  local actual=absent
  kubectl get apiservice v1alpha1.decisions.wva.llmd.ai >/dev/null 2>&1 && actual=there
  echo $actual
  [ $actual = "$1" ]
}

for user in reader stranger; do
  kubectl -n llm create serviceaccount $user --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubeconfig $user "{token: $(kubectl create token $user -n llm)}"
done
# Only these two verbs, in one namespace.
kubectl -n llm create role explanations --verb=get,list --resource=explanations.decisions.wva.llmd.ai --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl -n llm create rolebinding explanations --role=explanations --serviceaccount=llm:reader --dry-run=client -o yaml | kubectl apply -f - >/dev/null
eventually 40 "the API server reaches the group" explanations_available

set_load "$(calculate "0.4 * $pod_rps")"
allow 2
eventually 60 "maximum 2: there are no more replicas" ready_are "<=" 2
configure "$release_namespace" "kvSpareTrigger: 0.79
enableLimiter: true
limiters: [{type: quota, name: team, scope: cluster, quotas: {H100: 2}}]"
eventually 60 "a quota is in force" condition_says "trigger 0.79"
allow 3
bound="team of H100: 0.0 of 2.0 free, 2.0 used"
eventually 120 "a quota binds" condition_says "2 instead of 3: $bound"

eventually 20 "who has only the two verbs sees the variant, its numbers and its state" plugin_says "llm llama llama 2 2 Decided" reader status -n llm
eventually 0 "the table names its columns" plugin_says "NAMESPACE NAME MODEL CURRENT DESIRED STATE REASON AGE" reader status -n llm
eventually 20 "explain shows the steps" plugin_says "bound by $bound" reader explain llama -n llm
eventually 0 "and the pods" plugin_says "Ready, newest sample" reader explain llm/llama
eventually 20 "why-not names the limit" plugin_says "It is not higher (Limit: 2 instead of 3: $bound" reader why-not llama -n llm
assert_eq "as data" "$(plugin reader why-not llama -n llm -o json | jq -r '.higher[0].kind')" Limit
assert_eq "kubectl lists them too" "$(KUBECONFIG=$CLUSTER_DIR/reader.kubeconfig kubectl get explanations -n llm --no-headers | awk '{ print $1, $4 }')" "llama 2"
assert_eq "and gets one" "$(KUBECONFIG=$CLUSTER_DIR/reader.kubeconfig kubectl get explanations llama -n llm -o jsonpath='{.desired} {.state}')" "2 Decided"
eventually 20 "kubectl explains the resource" documented

eventually 0 "who has no right is told which one" plugin_says "the verb get on explanations.decisions.wva.llmd.ai is needed" stranger explain llama -n llm
eventually 0 "with exit code 2" refused 2 stranger status -n llm
eventually 0 "a right in one namespace is none in all" plugin_says "cannot list resource" reader status -A
eventually 0 "a variant that does not exist" plugin_says "has no variant of this name in namespace llm" reader explain lama -n llm
kubectl -n llm create rolebinding viewer --clusterrole=view --serviceaccount=llm:stranger --dry-run=client -o yaml | kubectl apply -f - >/dev/null
eventually 20 "who may view the namespace may read it" plugin_says "llm llama" stranger status -n llm
eventually 0 "and check it" plugin_says "terminationGracePeriodSeconds is 2" stranger check -n llm
eventually 0 "which finds a warning" refused 1 stranger check -n llm --strict
eventually 60 "a namespace is deleted while the group is served" namespace_is_deleted
assert_eq "nothing can be deleted" "$(kubectl auth can-i delete explanations.decisions.wva.llmd.ai -n llm --as=system:serviceaccount:llm:reader 2>/dev/null)" no

install_chart --set apiService.explanations.enabled=false
route_api_server_to "$wva_port"
eventually 20 "without the APIService, the plugin names the chart's value" plugin_says "apiService.explanations.enabled" reader status -n llm
eventually 60 "a namespace is deleted" namespace_is_deleted
eventually 0 "the number does not depend on it" value_is "==" 2

kubectl -n llm delete rolebinding,role explanations >/dev/null
kubectl -n llm delete rolebinding viewer >/dev/null
kubectl -n llm delete serviceaccount reader stranger >/dev/null
# An upgrade from a version whose pods do not know the resource.
kubectl -n "$release_namespace" annotate deployment wva wva.llmd.ai/serves-explanations- >/dev/null
install_chart
eventually 0 "an upgrade adds no APIService that its pods do not serve yet" explanations_are "absent"
install_chart
eventually 0 "the next one adds it" explanations_are "there"
kubectl -n "$release_namespace" delete configmap wva-saturation-scaling-config >/dev/null
install_chart
route_api_server_to "$wva_port"
eventually 40 "it is back" explanations_available
