# shellcheck shell=bash
# (34) Two installations, read through the one APIService. The second one has Roles only, for one namespace. A plain HPA in each namespace follows
# its own installation. The second one is killed: its HPA holds and says why, and the owner's goes on. It is responsible for the variants with its
# label only: another one in its namespace has no number, and no status.

second_namespace=wva-blue
second_ca=$CLUSTER_DIR/second-ca.crt
second_command() { release_namespace=$second_namespace "$@"; }
start_second() {
  WVA_ARGS="--watch-namespace blue --controller-instance Team_Blue --forwarder-ca-file $CLUSTER_DIR/owner-ca.crt --forwarder-name wva-instance.$release_namespace.internal" \
    second_command start_wva wva-1 "$second_port"
}
ca_of() { kubectl -n "$1" get secret wva-tls -o jsonpath='{.data.ca\.crt}' | base64 -d; }
# second_value_is NUMBER: the API server answers the variant of namespace blue with it
second_value_is() {
  local body actual
  body=$(kubectl get --raw "$external_metrics/namespaces/blue/wva_desired_replicas?labelSelector=variant_name%3Dsky%2Cexported_namespace%3Dblue" 2>&1) ||
    { echo "$body"; return 1; }
  actual=$(jq -r '[.items[] | .metricLabels.variant_name + " " + .value] | join(", ")' <<<"$body")
  echo "$actual"
  [ "$actual" = "sky $1" ]
}
second_is_unknown() {
  local body
  ! body=$(kubectl get --raw "$external_metrics/namespaces/blue/wva_desired_replicas?labelSelector=variant_name%3Dsky" 2>&1) || { echo "$body"; return 1; }
  echo "$body"
  [[ $body == *"namespace blue is excluded by its annotation"* ]]
}
second_scaled_to() { is "$(kubectl -n blue get deployment sky -o jsonpath='{.spec.replicas}') == $1"; }
second_hpa_says() {
  local actual
  actual=$(kubectl -n blue get hpa sky -o jsonpath='{.status.conditions[?(@.type=="ScalingActive")].message}')
  echo "$actual"
  [[ $actual == *"$1"* ]]
}
# of_another_instance: the variant with another label has neither a number nor a status
of_another_instance() {
  local body
  ! body=$(kubectl get --raw "$external_metrics/namespaces/blue/wva_desired_replicas?labelSelector=variant_name%3Dfog" 2>&1) || { echo "$body"; return 1; }
  [[ $body == *"(NotFound)"* ]] || { echo "$body"; return 1; }
  body=$(kubectl -n blue get va fog -o jsonpath='{.status}')
  echo "status: ${body:-none}"
  [ -z "$body" ]
}
sky_load() { model=sky set_load "$1" && echo "$1 requests/s"; }
may() { kubectl auth can-i "$@" --as "system:serviceaccount:$second_namespace:wva" 2>/dev/null || true; }

hold_at 3
sed -e 's/namespace: llm\b/namespace: blue/; s/name: llm$/name: blue/; s/llama/sky/g; s/maxReplicas: 10/maxReplicas: 2/' "$e2e/objects/llama.yaml" | kubectl apply -f - >/dev/null
kubectl -n blue label va sky wva.llmd.ai/controller-instance=Team_Blue >/dev/null
kubectl -n blue get va sky -o json | jq '.metadata = {name: "fog", namespace: "blue", labels: {"wva.llmd.ai/controller-instance": "team-green"}}' |
  kubectl create -f - >/dev/null
kubectl annotate namespace blue wva.llmd.ai/exclude=true >/dev/null
eventually 30 "load above the capacity of 2 pods there" sky_load "$(calculate "2.3 * $pod_rps")"
eventually 30 "namespace blue is not the owner's: its variant has no number" second_is_unknown

# By a tenant, who may do everything in two namespaces and nothing elsewhere.
kubectl create namespace "$second_namespace" >/dev/null
kubectl -n blue create serviceaccount tenant >/dev/null
for namespace in blue "$second_namespace"; do
  kubectl -n "$namespace" create rolebinding tenant --clusterrole=cluster-admin --serviceaccount=blue:tenant >/dev/null
done
kubeconfig tenant "{token: $(kubectl create token tenant -n blue)}"
KUBECONFIG=$CLUSTER_DIR/tenant.kubeconfig helm install wva "$root/charts/wva" -n "$second_namespace" --skip-crds --set watchNamespace=blue --set controllerInstance=Team_Blue --set clusterRights=false \
  --set apiService.enabled=false --set forwarder.name="wva-instance.$release_namespace.internal" --set forwarder.ca.configMap=owner-ca >/dev/null
assert_eq "the second release, of the same name: its cluster-wide objects" "$(kubectl get clusterroles,clusterrolebindings -o name | grep -c "$second_namespace:" || true)" 0
assert_eq "it may review access" "$(may create subjectaccessreviews.authorization.k8s.io)" no
assert_eq "it may read the trust configuration" "$(may list configmaps -n kube-system)" no
configure "$second_namespace" "analyzerName: saturation-percent"
ca_of "$release_namespace" >"$CLUSTER_DIR/owner-ca.crt"
start_second
ca_of "$second_namespace" >"$second_ca"

stop wva-0
WVA_ARGS="--installation {\"name\":\"blue\",\"address\":\"127.0.0.1:$second_port\",\"ca\":\"$second_ca\",\"serverName\":\"wva.$second_namespace.svc\",\"namespaces\":[\"blue\"],\"controllerInstance\":\"Team_Blue\"}" \
  start_wva wva-0 "$wva_port"
eventually 90 "the owner lists it: the API server answers with its number" second_value_is 2
eventually 60 "the plain HPA in its namespace follows" second_scaled_to 2
eventually 30 "the owner's variant has its own number" value_is "==" 3
throughout 10 "and both keep theirs" second_value_is 2
throughout 5 "a variant with the label of another instance has nothing" of_another_instance

stop wva-1 KILL
eventually 20 "the second installation is killed: its HPA says which installation, and what to check" second_hpa_says "installation blue at 127.0.0.1:$second_port cannot be read"
allow 4
eventually 90 "the owner goes on: maximum raised to 4, which the load needs" value_is "==" 4
eventually 30 "its HPA follows" replicas_are "==" 4
throughout 15 "the HPA of the second installation holds" second_scaled_to 2

kubectl -n blue patch va sky --type merge -p '{"spec":{"maxReplicas":3}}' >/dev/null
kubectl -n blue patch hpa sky --type merge -p '{"spec":{"maxReplicas":3}}' >/dev/null
start_second
eventually 60 "the second installation is back, its maximum raised to 3: its number" second_value_is 3
eventually 60 "its HPA follows" second_scaled_to 3

stop wva-1
stop wva-0 # the next case starts it without the list
helm uninstall wva -n "$second_namespace" >/dev/null
kubectl delete namespace blue "$second_namespace" --wait=false >/dev/null
sky_load 0 >/dev/null
