# shellcheck shell=bash
# (32) The commands that `wva migrate` prints replace a release of WVA behind prometheus-adapter, run as they are printed: the variants, their
# HPAs and the definition stay the same objects, and the number is read. Also the way back. Uninstalling the release deletes variants.

chart=$e2e/objects/upstream-chart old=wva-old release=workload-variant-autoscaler
kubectl -n llm delete hpa,va llama >/dev/null
hold_load() { set_load "$(calculate "2.3 * $pod_rps")"; } # above the capacity of 2 pods: the number is the maximum, 2

helm install naive "$chart" -n $old --create-namespace --set controller.enabled=false >/dev/null
kubectl -n llm annotate va llama helm.sh/resource-policy=keep >/dev/null
helm uninstall naive -n $old >/dev/null
is_deleted() { ! kubectl -n llm get va llama -o name 2>/dev/null && echo "not found"; }
eventually 10 "helm uninstall deletes a variant, although the live object says keep" is_deleted

# A cluster with WVA and prometheus-adapter, and without this program.
stop wva-0
helm uninstall wva -n "$release_namespace" >/dev/null
helm install $release "$chart" -n $old >/dev/null
# The adapter is told apart by the name of its chart.
adapter=$CLUSTER_DIR/prometheus-adapter-chart
rm -rf "$adapter" "$CLUSTER_DIR"/wva-values.yaml "$CLUSTER_DIR"/prometheus-adapter-values.yaml
cp -r "$chart" "$adapter"
sed -i 's/^name: .*/name: prometheus-adapter/' "$adapter/Chart.yaml"
helm install prometheus-adapter "$adapter" -n monitoring --create-namespace --set controller.enabled=false,va.enabled=false,adapter.enabled=true >/dev/null
ln -sfn "$root/charts" "$CLUSTER_DIR/charts"
# Another installation of WVA has the same labels.
kubectl create clusterrole other-$release-manager-role --verb=get --resource=pods >/dev/null
kubectl label clusterrole other-$release-manager-role app.kubernetes.io/name=$release app.kubernetes.io/instance=$release >/dev/null

# migrate: writes the plan to $CLUSTER_DIR/plan and prints the exit code
migrate() {
  local status=0
  "$WVA" migrate --kubeconfig "$KUBECONFIG" >"$CLUSTER_DIR/plan" 2>&1 || status=$?
  echo $status
}
# run_step TITLE [SED_SCRIPT]: runs the commands of the step whose title begins so, as printed, with wva in PATH. No pod of this program
# runs here, so its rollout is not waited for.
run_step() {
  local commands
  # A title, an empty line, the commands, an empty line.
  commands=$(awk -v title="$1" '/^  [0-9]+\. / { on = index($0, title) > 0; next } /^$/ && on { on = on < 2 ? 2 : 0; next } on == 2' \
    "$CLUSTER_DIR/plan" | sed "/rollout status/d; ${2:-}")
  [ -n "$commands" ] || failed "no step '$1' in: $(cat "$CLUSTER_DIR/plan")"
  (cd "$CLUSTER_DIR" && wva() { "$WVA" "$@"; } && export -f wva && export WVA IMAGE_REGISTRY=registry.invalid && bash -euo pipefail -c "$commands") \
    >"$CLUSTER_DIR/step.log" 2>&1 || failed "step '$1': $(tail -n 5 "$CLUSTER_DIR/step.log")"
}
plan_has() { tr -s ' \n' ' ' <"$CLUSTER_DIR/plan" | grep -oF -- "$1" | head -n 1 | grep . || { cat "$CLUSTER_DIR/plan"; return 1; }; }
uids() {
  kubectl -n llm get va/llama hpa/llama service/$release-vllm -o jsonpath='{.items[*].metadata.uid}'
  kubectl get crd variantautoscalings.llmd.ai -o jsonpath=' {.metadata.uid}'
}

assert_eq "exit code of wva migrate" "$(migrate)" 0
eventually 0 "it names what helm uninstall would delete" plan_has \
  "\`helm uninstall\` would delete HorizontalPodAutoscaler llm/llama, Service llm/$release-vllm, VariantAutoscaling llm/llama: do not uninstall it"
before=$(uids)

run_step "Copy the ConfigMaps"
thresholds() { kubectl -n "$1" get configmap $release-wva-saturation-scaling-config -o jsonpath='{.data}'; }
assert_eq "the copied thresholds" "$(thresholds "$release_namespace")" "$(thresholds $old)"
run_step "Write wva-values.yaml"
run_step "Install this program"
run_step "Install this program"
kubectl -n "$release_namespace" patch service wva --type merge -p '{"spec":{"type":"ExternalName","externalName":"localhost"}}' >/dev/null
WVA_ARGS="--saturation-config-map $release-wva-saturation-scaling-config" start_wva wva-0 "$wva_port"
run_step "Save what the way back needs"
# Only here do processes stand for the pods behind the Service, so only here does Helm find changes of somebody else.
run_step "Let this program own" 's/--reset-then-reuse-values/& --force-conflicts/'
kubectl -n "$release_namespace" patch service wva --type merge -p '{"spec":{"type":"ExternalName","externalName":"localhost"}}' >/dev/null
route_api_server_to "$wva_port"
eventually 40 "the APIService is this program's, and available" is_available
hold_load
eventually 90 "the HPA that WVA's chart rendered reads the number" value_is "==" 2
eventually 40 "and follows it" replicas_are "==" 2

run_step "Stop WVA"
run_step "Remove the controller"
assert_eq "releases that Helm knows in $old" "$(helm list -n $old -q)" ""
assert_eq "objects of the controller" "$(kubectl -n $old get deployment,serviceaccount -l app.kubernetes.io/instance=$release -o name)" ""
assert_eq "the rights of another installation" "$(kubectl get clusterrole -l app.kubernetes.io/instance=$release -o name)" \
  "clusterrole.rbac.authorization.k8s.io/other-$release-manager-role"
throughout 15 "the number is still read" value_is "==" 2
assert_eq "uids of variant, HPA, the model's Service and the definition" "$(uids)" "$before"
output=$(helm uninstall $release -n $old 2>&1) && failed "helm uninstall finds the release: $output"
passed "helm uninstall finds nothing to delete: $output"
eventually 0 "uninstalling deleted nothing" value_is "==" 2
assert_eq "exit code of wva migrate afterwards" "$(migrate)" 0
eventually 0 "no controller is left" plan_has "no controller of WVA"

kubectl -n $old label secret -l owner=wva-migration,name=$release owner=helm --overwrite >/dev/null
helm -n $old rollback $release 1 >/dev/null
assert_eq "back: the controller" "$(kubectl -n $old get deployment -o name)" "deployment.apps/$release-controller-manager"
assert_eq "back: uids" "$(uids)" "$before"

migrate >/dev/null
run_step "Stop WVA"
run_step "Remove the controller"
kubectl delete namespace $old monitoring >/dev/null
stop wva-0
helm uninstall wva -n "$release_namespace" >/dev/null
kubectl -n llm delete service $release-vllm >/dev/null
kubectl delete clusterrole other-$release-manager-role >/dev/null
kubectl -n "$release_namespace" delete configmap $release-wva-saturation-scaling-config >/dev/null
install_chart
start_wva wva-0 "$wva_port"
route_api_server_to "$wva_port"
kubectl apply -f "$e2e/objects/llama.yaml" >/dev/null
eventually 40 "the chart of the other cases again: the APIService is available" is_available
