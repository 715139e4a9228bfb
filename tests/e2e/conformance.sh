# shellcheck shell=bash
# Runs the conformance suite against a server in the test cluster, directly and through the API server. Sourced by its case and by
# ../conformance/run. Needs CONFORMANCE (the program), and what lib.sh and actors.sh need.

# Adds a second model with a variant, so that a selector can match two series.
add_second_variant() {
  sed -e '/^kind: HorizontalPodAutoscaler/,$d' -e 's/\bllama\b/mistral/g' "$e2e/objects/llama.yaml" | sed '$d' | kubectl apply -f - >/dev/null
}
remove_second_variant() { kubectl -n llm delete deployment,va mistral >/dev/null; }

# both_have_numbers: a read without a variant name returns two items.
both_have_numbers() {
  local actual
  actual=$(kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=exported_namespace%3Dllm" 2>&1) || { echo "$actual"; return 1; }
  actual=$(grep -o '"variant_name"' <<<"$actual" | wc -l)
  echo "$actual variants"
  [ "$actual" = 2 ]
}

# offer_wva [HELM_ARGUMENT...]: adds the second variant, registers both groups, and sets `series` to the suite's arguments for one series, several,
# and an object.
offer_wva() {
  install_chart --set apiService.custom.enabled=true "$@"
  route_api_server_to "$wva_port"
  add_second_variant
  eventually 60 "two variants have a number" both_have_numbers
  eventually 40 "the custom metrics APIs are available too" custom_available
  kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$CLUSTER_DIR/wva-ca.crt"
  # wva selects objects by the labels of their variants, not by their own labels: an HPA selects only pods by labels.
  series=(--namespace llm --metric wva_desired_replicas --selector "variant_name=llama,exported_namespace=llm" --multi-selector "exported_namespace=llm"
    --custom-object Deployment.apps/llama --custom-selector variant_name=llama)
}

withdraw_wva() {
  remove_second_variant
  install_chart
  route_api_server_to "$wva_port"
}

# conform_port PORT CA SERVER_NAME [FLAG...]: `series` names the metric, and `token` belongs to a reader. The client certificate belongs to a
# user without any rights.
conform_port() {
  [ -e "$CLUSTER_DIR/pki/stranger.crt" ] || certificate stranger ca /CN=stranger
  "$CONFORMANCE" --server "https://127.0.0.1:$1" --ca "$2" --server-name "$3" --proxy-cert "$CLUSTER_DIR/pki/front-proxy-client.crt" \
    --proxy-key "$CLUSTER_DIR/pki/front-proxy-client.key" --client-cert "$CLUSTER_DIR/pki/stranger.crt" --client-key "$CLUSTER_DIR/pki/stranger.key" \
    --token "$token" "${series[@]}" "${@:4}"
}

# conform_aggregated [FLAG...]
conform_aggregated() {
  "$CONFORMANCE" --kubeconfig "$KUBECONFIG" --create-namespace "${series[@]}" "$@"
}

# A service account that may read every external metric.
metrics_reader_token() {
  kubectl apply -f - >/dev/null <<'YAML'
apiVersion: v1
kind: ServiceAccount
metadata: {name: conformance, namespace: llm}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: conformance}
rules: [{apiGroups: [external.metrics.k8s.io, custom.metrics.k8s.io], resources: ["*"], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: conformance}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: conformance}
subjects: [{kind: ServiceAccount, name: conformance, namespace: llm}]
YAML
  kubectl -n llm create token conformance
}
