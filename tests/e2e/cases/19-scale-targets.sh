# shellcheck shell=bash
# (19) Scale targets other than a Deployment: a StatefulSet; a LeaderWorkerSet, whose definition is installed while wva runs; and a kind that wva
# finds by discovery, with a right that is granted while it runs. And of two variants with one target the older decides.
#
# The StatefulSets are managed by the real controller. No controller of LeaderWorkerSets runs: `manage_groups` creates the StatefulSets, their owners
# and the status that it would create. Its leader pods are those of a StatefulSet that the LeaderWorkerSet owns, and the workers of a group those of
# one that the leader owns.

condition_of() { kubectl -n llm get va "$1" -o jsonpath='{range .status.conditions[?(@.type=="TargetResolved")]}{.status} {.reason}: {.message}{end}'; }
# target_is VARIANT TEXT: its condition TargetResolved contains TEXT
target_is() {
  local actual
  actual=$(condition_of "$1")
  echo "$actual"
  [[ $actual == *"$2"* ]]
}
# requested_is KIND NAME NUMBER: the HPA has set spec.replicas
requested_is() {
  local actual
  actual=$(kubectl -n llm get "$1" "$2" -o jsonpath='{.spec.replicas}')
  is "$actual == $3"
}
maximum_of() { kubectl -n llm patch va "$1" --type merge -p "{\"spec\":{\"maxReplicas\":$2}}" >/dev/null; }
load_of() { model=$1 set_load "$2"; }

# variant NAME APIVERSION KIND
variant() {
  kubectl apply -f - >/dev/null <<YAML
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: $1, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: $2, kind: $3, name: $1}
  modelID: $1
  minReplicas: 1
  maxReplicas: 1
YAML
}

# set_of NAME REPLICAS FIRST LABELS OWNER: a StatefulSet of the LeaderWorkerSet crew, with these labels besides the set's name. OWNER is the flow
# mapping of its owner without `controller`
set_of() {
  kubectl apply -f - >/dev/null <<YAML
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: $1
  namespace: llm
  labels: {crew: member}
  ownerReferences: [{controller: true, $5}]
spec:
  replicas: $2
  serviceName: crew
  podManagementPolicy: Parallel
  ordinals: {start: $3}
  selector: {matchLabels: {set: $1}}
  template:
    metadata:
      labels: {set: $1, leaderworkerset.sigs.k8s.io/name: crew, $4}
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: vllm, image: vllm/vllm-openai, ports: [{name: http, containerPort: 8000}]}]
YAML
}
is_ready() { [ "$(kubectl -n llm get pod "$1" --ignore-not-found -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
# uid_of RESOURCE NAME: empty while it does not exist
uid_of() { kubectl -n llm get "$1" "$2" --ignore-not-found -o jsonpath='{.metadata.uid}'; }

# manage_groups: what the controller of LeaderWorkerSets does. The workers of the groups below $workers exist.
workers=0
manage_groups() {
  local wanted group leader ready=0
  wanted=$(kubectl -n llm get lws crew -o jsonpath='{.spec.replicas}')
  set_of crew "$wanted" 0 'leaderworkerset.sigs.k8s.io/worker-index: "0", llm-d.ai/model: crew' \
    "apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: crew, uid: $(uid_of lws crew)"
  for ((group = 0; group < wanted; group++)); do
    leader=$(uid_of pod "crew-$group")
    [ "$group" -ge "$workers" ] || [ -z "$leader" ] ||
      set_of "crew-$group" 1 1 'leaderworkerset.sigs.k8s.io/worker-index: "1"' "apiVersion: v1, kind: Pod, name: crew-$group, uid: $leader"
    is_ready "crew-$group" && is_ready "crew-$group-1" && ready=$((ready + 1))
  done
  kubectl -n llm patch lws crew --subresource=status --type merge -p "{\"status\":{\"replicas\":$wanted,\"readyReplicas\":$ready,
    \"hpaPodSelector\":\"leaderworkerset.sigs.k8s.io/name=crew,leaderworkerset.sigs.k8s.io/worker-index=0\"}}" >/dev/null
  echo "$ready of $wanted groups are Ready"
}
groups_are() {
  local actual
  actual=$(manage_groups)
  echo "$actual"
  [ "$actual" = "$1 of $2 groups are Ready" ]
}

# A StatefulSet.
kubectl apply -f "$e2e/objects/stateful-set.yaml" >/dev/null
eventually 30 "a StatefulSet is a scale target" target_is herd "True TargetFound: Scale target StatefulSet herd found"
maximum_of herd 3
load_of herd "$(calculate "3.3 * $pod_rps")"
eventually 180 "load above the capacity of 3 pods, maximum 3: the HPA scales the StatefulSet to 3" requested_is statefulset herd 3

# A LeaderWorkerSet, before its definition is installed.
variant crew leaderworkerset.x-k8s.io/v1 LeaderWorkerSet
eventually 30 "without LeaderWorkerSets the condition says so" target_is crew "Unknown TargetUnknown: it is not known whether LeaderWorkerSet crew exists: the API server serves no LeaderWorkerSets"
eventually 0 "the StatefulSet is not affected" target_is herd "True TargetFound"
assert_eq "lines in the log about it" "$(grep -c 'cannot watch LeaderWorkerSets' "$CLUSTER_DIR/logs/wva-0.log")" 1
kubectl apply -f "$e2e/objects/leader-worker-set-crd.yaml" >/dev/null
kubectl wait --for=condition=Established crd/leaderworkersets.leaderworkerset.x-k8s.io --timeout=30s >/dev/null
kubectl apply -f "$e2e/objects/leader-worker-set.yaml" >/dev/null
eventually 60 "its definition is installed: it is found without a restart" target_is crew "True TargetFound: Scale target LeaderWorkerSet crew found"

# Its replicas are groups.
leader_is_ready() { manage_groups && is_ready crew-0; }
eventually 60 "the leader is Ready" leader_is_ready
eventually 0 "its worker does not exist: no group is Ready" groups_are 0 1
load_of crew "$(calculate "2.3 * $pod_rps")"
maximum_of crew 2
throughout 20 "a group that is not Ready is no reason to add another" requested_is lws crew 1
workers=2
eventually 60 "the worker is Ready: so is the group" groups_are 1 1
eventually 180 "load above the capacity of 2 leaders, maximum 2: the HPA scales it to 2 groups" requested_is lws crew 2
eventually 60 "both groups are Ready" groups_are 2 2

# Their numbers as metrics of the scale targets themselves.
# describe APIVERSION KIND NAME: the HPA of the scale target reads the number as a metric of that
describe() {
  kubectl -n llm patch hpa "$3" --type json -p '[{"op":"replace","path":"/spec/metrics","value":[{"type":"Object","object":{
    "describedObject":{"apiVersion":"'"$1"'","kind":"'"$2"'","name":"'"$3"'"},
    "metric":{"name":"wva_desired_replicas"},"target":{"type":"AverageValue","averageValue":"1"}}}]}]' >/dev/null
}
both_requested() { requested_is statefulset herd "$1" && requested_is lws crew "$2"; }
install_chart --set apiService.custom.enabled=true
route_api_server_to "$wva_port"
eventually 40 "both custom APIServices are available" custom_available
describe apps/v1 StatefulSet herd
describe leaderworkerset.x-k8s.io/v1 LeaderWorkerSet crew
maximum_of herd 2
maximum_of crew 1
eventually 60 "maxima lowered to 2 and 1: HPAs of type Object that describe a StatefulSet and a LeaderWorkerSet follow" both_requested 2 1

# A kind that is found by discovery: a ReplicaSet of nobody.
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: pack, namespace: llm}
spec:
  replicas: 1
  selector: {matchLabels: {app: pack}}
  template:
    metadata: {labels: {app: pack}}
    spec: {containers: [{name: vllm, image: vllm/vllm-openai}]}
YAML
variant pack apps/v1 ReplicaSet
# A status whose text alone changes is written again after 30 s.
eventually 60 "a right that is missing is named, with the chart's value" target_is pack 'cannot get resource "replicasets"'
eventually 0 "with the chart's value" target_is pack "targets.extraRules"
install_chart --set-json 'targets.extraRules=[{"apiGroups":["apps"],"resources":["replicasets","replicasets/scale"],"verbs":["get"]}]'
route_api_server_to "$wva_port"
eventually 60 "the right is granted: it is found without a restart" target_is pack "True TargetFound: Scale target ReplicaSet pack found"

# Two variants with one target.
kubectl -n llm get va llama -o json | jq '.metadata = {name: "copy", namespace: "llm"} | del(.status)' | kubectl create -f - >/dev/null
eventually 30 "of two variants with one target the younger is told which one decides" target_is copy \
  "spec.scaleTargetRef Deployment llama is the target of llm/llama too, which was created first and decides"
eventually 0 "the older one keeps it" target_is llama "True TargetFound: Scale target Deployment llama found"
eventually 0 "and its number" value_is ">=" 1

load_of herd 0
load_of crew 0
kubectl -n llm delete va copy pack crew >/dev/null
kubectl -n llm delete replicaset pack >/dev/null
kubectl -n llm delete -f "$e2e/objects/stateful-set.yaml" -f "$e2e/objects/leader-worker-set.yaml" >/dev/null
kubectl delete -f "$e2e/objects/leader-worker-set-crd.yaml" >/dev/null
kubectl -n llm delete statefulset -l crew=member --ignore-not-found >/dev/null
install_chart
route_api_server_to "$wva_port"
