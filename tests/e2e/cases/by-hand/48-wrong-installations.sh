# shellcheck shell=bash
# (48) What `wva check` says of a wrong installation is what really happens: the definition, the APIService and its certificate, Prometheus, endpoint
# pickers, nodes, rights and the configuration are made wrong one after the other. Each time the check has its finding, the real controllers do
# what docs/check.md says of it, and mending it ends both. Wrong HPAs are case 43, and the wrong clock of an instance is case 21.

external=v1beta1.external.metrics.k8s.io
definition="CustomResourceDefinition variantautoscalings.llmd.ai"
account="ServiceAccount $release_namespace/wva"

# check [ARGUMENT...]: writes the JSON to $CLUSTER_DIR/check.json and prints the exit code. Prometheus is that of the test cluster.
check() {
  local status=0
  "$WVA" check --kubeconfig "$KUBECONFIG" --prometheus-url "$PROMETHEUS_URL" --output json "$@" >"$CLUSTER_DIR/check.json" 2>"$CLUSTER_DIR/check.err" || status=$?
  echo $status
}
# found OBJECT REASON [TEXT]: the last check has this finding, and its effect or what is set contains TEXT
found() {
  jq -e --arg object "$1" --arg reason "$2" --arg text "${3:-}" -r \
    '.findings[] | select(.object == $object and .reason == $reason and ((.set + " " + .effect) | contains($text))) | .severity + ": " + .set' \
    "$CLUSTER_DIR/check.json" || { jq -c '.findings[] | [.severity, .object, .reason, .set]' "$CLUSTER_DIR/check.json"; return 1; }
}
# check_finds OBJECT REASON TEXT [ARGUMENT...]: for `eventually`, where the API server takes a moment to see what has been changed
check_finds() { check "${@:4}" >/dev/null && found "$1" "$2" "$3"; }
# found_times REASON: how often the last check has it
found_times() { jq --arg reason "$1" '[.findings[] | select(.reason == $reason)] | length' "$CLUSTER_DIR/check.json"; }
# errors_are TEXT: the errors of the last check
errors_are() {
  local actual
  actual=$(jq -r '[.findings[] | select(.severity == "error") | .object + " " + .reason] | join("; ")' "$CLUSTER_DIR/check.json")
  echo "${actual:-none}"
  [ "$actual" = "$1" ]
}
is_clean() { check >/dev/null && errors_are ""; }
# number_of NAME: the number of a variant, or why it has none
number_of() {
  local body
  body=$(kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3D$1" 2>&1) || { echo "$body"; return 1; }
  jq -r '.items[0].value' <<<"$body"
}
number_is() { local n; n=$(number_of "$1") || { echo "$n"; return 1; }; echo "$n"; [ "$n" = "$2" ]; }
has_no_number() {
  local n
  ! n=$(number_of "$1") || { echo "a number: $n"; return 1; }
  echo "$n"
  [[ $n == *"$2"* ]]
}
scale_is() { local n; n=$(kubectl -n llm get deployment "$1" -o jsonpath='{.spec.replicas}') && echo "$n" && [ "$n" = "$2" ]; }
# says NAME TYPE TEXT: this condition of the variant contains TEXT
says() {
  local actual
  actual=$(kubectl -n llm get va "$1" -o jsonpath="{range .status.conditions[?(@.type==\"$2\")]}{.status} {.reason}: {.message}{end}")
  echo "$actual"
  [[ $actual == *"$3"* ]]
}
# variant NAME REPLICAS SPEC [LABELS]: a workload, a variant that the model is named after, and its HPA
variant() {
  cat <<YAML
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: $1, namespace: llm}
spec:
  replicas: $2
  selector: {matchLabels: {app: $1}}
  template:
    metadata: {labels: {app: $1${4:+, $4}}}
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: vllm, image: vllm/vllm-openai, ports: [{name: http, containerPort: 8000}]}]
---
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: $1, namespace: llm}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: $1}, modelID: $1, $3}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: $1, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: $1}
  minReplicas: 1
  maxReplicas: 5
  metrics:
  - type: External
    external:
      metric: {name: wva_desired_replicas, selector: {matchLabels: {variant_name: $1}}}
      target: {type: AverageValue, averageValue: "1"}
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
YAML
}
remove() { local kind; for kind in hpa va deployment; do kubectl -n llm delete "$kind" "$@" --ignore-not-found --wait=false >/dev/null; done; }
saved='del(.metadata.uid, .metadata.resourceVersion, .metadata.creationTimestamp, .metadata.managedFields, .status)'
# holds SECONDS 'what': the replicas stay
kept=2
holds() { throughout "$1" "$2" replicas_are "==" "$kept"; }
hold_at 2
eventually 30 "the HPA follows it" scaling_active_is True
assert_eq "exit code before anything is wrong" "$(check)" 0

# ---- the definition

kubectl get crd variantautoscalings.llmd.ai -o json | jq "$saved" >"$CLUSTER_DIR/crd.json"
kubectl -n llm get va llama -o json | jq "$saved" >"$CLUSTER_DIR/va.json"
define() { jq "${1:-.}" "$CLUSTER_DIR/crd.json" | kubectl apply --server-side --force-conflicts -f - >/dev/null; }
of_va() { kubectl -n llm get va llama -o json | jq -c "$1"; }
# va_has EXPRESSION VALUE
va_has() { local actual; actual=$(of_va "$1") && echo "$actual" && [ "$actual" = "$2" ]; }

# Ours keeps fields of the specification that it does not know; this one does not.
define '.spec.versions[0].schema.openAPIV3Schema.properties |= (del(.spec["x-kubernetes-preserve-unknown-fields"]) | .spec.properties |= del(.maxReplicas, .scaleToZero)
  | .status.properties |= del(.conditions))'
eventually 20 "an older definition" check_finds "$definition" DefinitionOutdated "it lacks"
assert_eq "exit code for it" "$(check)" 0
assert_eq "and with --strict" "$(check --strict)" 1
eventually 20 "the API server drops a field that it does not know: maxReplicas is lost" va_has .spec.maxReplicas null
kubectl -n llm patch va llama --type merge -p '{"spec":{"maxReplicas":2}}' >/dev/null 2>&1
eventually 0 "also when it is set again" va_has .spec.maxReplicas null
eventually 60 "and conditions are lost" va_has .status.conditions null
eventually 60 "without its maximum, the number is what the load needs" value_is ">" 2
define
kubectl -n llm patch va llama --type merge -p '{"spec":{"maxReplicas":2}}' >/dev/null
eventually 60 "the fix: the maximum counts again" value_is "==" 2
eventually 60 "and conditions are back" says llama TargetResolved "True TargetFound"
eventually 60 "2 replicas" ready_are "==" 2

define '.spec.versions += [.spec.versions[0] | .name = "v1" | .storage = false] | .spec.versions[0].served = false'
eventually 20 "one that does not serve the version" check_finds "$definition" DefinitionVersion "it serves v1, and not v1alpha1"
assert_eq "exit code for it" "$(check)" 1
throughout 15 "a program that runs goes on with the variants that it knows" value_is "==" 2
stop wva-0
! (start_wva wva-0 "$wva_port") >/dev/null 2>&1 || failed "an instance that starts is Ready"
passed "one that starts is not Ready: $(curl --silent --insecure "https://127.0.0.1:$wva_port/readyz" | grep -F informer-sync)"
eventually 90 "and has no number, once the one before it is older than --max-stale" metric_fails_with .
eventually 20 "the HPA gets an error" scaling_active_is False
holds 10 "and keeps its replicas"
define
eventually 60 "the fix: the HPA has a number again" scaling_active_is True
hold_at 2

kubectl delete crd variantautoscalings.llmd.ai --timeout=60s >/dev/null
eventually 20 "none at all" check_finds "$definition" DefinitionMissing "it does not exist"
assert_eq "exit code for it" "$(check)" 1
eventually 40 "the HPA has no number" scaling_active_is False
holds 10 "and keeps its replicas"
# An annotation makes a variant without the definition.
variant noted 1 "" "llm-d.ai/model: noted" | sed '/^kind: VariantAutoscaling/,/^---/d; s/^apiVersion: llmd.ai.*//' |
  sed '/^kind: HorizontalPodAutoscaler/,$s/namespace: llm}$/namespace: llm, annotations: {llm-d.ai\/managed: "true", llm-d.ai\/model-id: noted}}/' |
  kubectl apply -f - >/dev/null
eventually 60 "an annotated HPA is a variant all the same" number_is noted 1
kubectl -n llm delete hpa,deployment noted --wait=false >/dev/null
kubectl create -f "$CLUSTER_DIR/crd.json" >/dev/null
kubectl wait --for=condition=Established crd/variantautoscalings.llmd.ai --timeout=30s >/dev/null
kubectl create -f "$CLUSTER_DIR/va.json" >/dev/null
eventually 90 "the fix: the HPA has a number again" scaling_active_is True
hold_at 2

# ---- the APIService and its certificate

kubectl get apiservice "$external" -o json | jq "$saved | del(.spec.caBundle)" >"$CLUSTER_DIR/apiservice.json"
condition() { kubectl get apiservice "$external" -o jsonpath="{range .status.conditions[?(@.type==\"$1\")]}{.status} {.reason}: {.message}{end}"; }
# available_is TEXT: the condition that the API server writes
available_is() { local actual; actual=$(condition Available) && echo "$actual" && [[ $actual == *"$1"* ]]; }
verified_is() { local actual; actual=$(condition CABundleVerified) && echo "$actual" && [[ $actual == *"$1"* ]]; }

kubectl delete apiservice "$external" >/dev/null
eventually 20 "no APIService" check_finds "APIService $external" ApiServiceMissing "1 HPAs read the number as an external metric"
assert_eq "exit code for it" "$(check)" 1
eventually 20 "the HPA gets an error" scaling_active_is False
holds 10 "and keeps its replicas"
kubectl create -f "$CLUSTER_DIR/apiservice.json" >/dev/null
eventually 60 "the fix: it is available" is_available
eventually 20 "and the HPA has a number again" scaling_active_is True

namespace_is() {
  local actual
  actual=$(kubectl get namespace left -o jsonpath='{.status.phase} {.status.conditions[?(@.status=="True")].reason}' 2>&1) || [[ $actual == *NotFound* ]] || return
  echo "$actual"
  [[ $actual == *"$1"* ]]
}
stop wva-0
eventually 60 "the program is stopped" check_finds "APIService $external" ApiServiceUnavailable "FailedDiscoveryCheck"
assert_eq "exit code for it" "$(check)" 1
eventually 20 "the HPA gets an error" scaling_active_is False
kubectl create namespace left >/dev/null
kubectl delete namespace left --wait=false >/dev/null
eventually 30 "and no namespace can be deleted" namespace_is "Terminating DiscoveryFailed"
throughout 10 "it stays" namespace_is "Terminating DiscoveryFailed"
holds 5 "the HPA keeps its replicas"
# An APIService that no instance has seen yet has no caBundle.
kubectl delete apiservice "$external" >/dev/null
kubectl create -f "$CLUSTER_DIR/apiservice.json" >/dev/null
eventually 30 "a new APIService has no caBundle" check_finds "APIService $external" CABundleMissing "caBundle is empty"
start_wva wva-0 "$wva_port"
eventually 60 "the fix: the program runs, and it is available" is_available
eventually 60 "the namespace is gone" namespace_is NotFound
eventually 20 "the HPA has a number again" scaling_active_is True

# A caBundle of another CA, and none, where the program does not write it: with a certificate of one's own.
stop wva-0
mkdir -p "$CLUSTER_DIR/own-tls"
for part in crt key; do
  kubectl -n "$release_namespace" get secret wva-tls -o go-template="{{index .data \"tls.$part\" | base64decode}}" >"$CLUSTER_DIR/own-tls/tls.$part"
done
right=$(kubectl get apiservice "$external" -o jsonpath='{.spec.caBundle}')
bundle_is() { kubectl patch apiservice "$external" --type merge -p "{\"spec\":{\"caBundle\":$1}}" >/dev/null; }
WVA_ARGS="--cert-dir $CLUSTER_DIR/own-tls" start_wva wva-0 "$wva_port"
eventually 60 "a certificate of one's own is served" is_available
bundle_is "\"$(base64 -w0 <"$CLUSTER_DIR/pki/ca.crt")\""
eventually 60 "a caBundle of another CA" check_finds "APIService $external" CABundleInvalid "caBundle does not verify the certificate in the Secret"
assert_eq "exit code for it" "$(check)" 1
eventually 60 "the API server refuses the certificate" available_is "certificate signed by unknown authority"
eventually 20 "the HPA gets an error" scaling_active_is False
eventually 60 "once the program has judged it, the check says so too" check_finds "APIService $external" CABundleInvalid "CABundleVerified is False"
bundle_is null
eventually 60 "no caBundle, which a program that runs judges itself" check_finds "APIService $external" CABundleInvalid "spec.caBundle is empty"
eventually 60 "the API server refuses the certificate" available_is "certificate signed by unknown authority"
holds 10 "the HPA keeps its replicas"
bundle_is "\"$right\""
eventually 60 "the fix: it is available" is_available
eventually 20 "and the HPA has a number again" scaling_active_is True
stop wva-0
start_wva wva-0 "$wva_port"

# Without verification, HPAs follow any server at that address. This one has a certificate that nobody knows, and answers 4.
choose_port impostor_port
resources=$(jq -nc '{kind: "APIResourceList", apiVersion: "v1", groupVersion: "external.metrics.k8s.io/v1beta1",
  resources: [{name: "externalmetrics", singularName: "", namespaced: true, kind: "ExternalMetricValueList", verbs: ["get"]}]}')
four=$(jq -nc '{kind: "ExternalMetricValueList", apiVersion: "external.metrics.k8s.io/v1beta1", metadata: {},
  items: [{metricName: "wva_desired_replicas", metricLabels: {}, timestamp: (now | todate), value: "4"}]}')
cat "$CLUSTER_DIR/pki/front-proxy-client.crt" "$CLUSTER_DIR/pki/front-proxy-client.key" >"$CLUSTER_DIR/impostor.pem"
cat >"$CLUSTER_DIR/impostor.cfg" <<CONFIG
defaults
  mode http
  timeout connect 1s
  timeout client 1h
  timeout server 1h
frontend impostor
  bind 127.0.0.1:$impostor_port ssl crt $CLUSTER_DIR/impostor.pem
  http-request return status 200 content-type application/json string '$resources' unless { path_beg $external_metrics/namespaces }
  http-request return status 200 content-type application/json string '$four'
CONFIG
spawn impostor "$(PATH=$PATH:/usr/sbin command -v haproxy)" -db -f "$CLUSTER_DIR/impostor.cfg"
kubectl patch apiservice "$external" --type merge -p "{\"spec\":{\"caBundle\":null,\"insecureSkipTLSVerify\":true,\"service\":{\"port\":$impostor_port}}}" >/dev/null
eventually 60 "no verification" check_finds "APIService $external" CertificateNotVerified "insecureSkipTLSVerify is true"
eventually 60 "HPAs follow a server whose certificate nobody verifies" replicas_are "==" 4
kubectl patch apiservice "$external" --type merge -p '{"spec":{"insecureSkipTLSVerify":false}}' >/dev/null
eventually 60 "the fix: wva fills in caBundle, and the API server refuses the other one" available_is "FailedDiscoveryCheck"
stop impostor
route_api_server_to "$wva_port"
eventually 60 "the program is available" is_available
eventually 60 "and its number followed" replicas_are "==" 2
eventually 20 "nothing is wrong any more" is_clean

# ---- Prometheus

# configure_scrapes EXPRESSION: changes the configuration of Prometheus with sed, or restores it
cp "$CLUSTER_DIR/prometheus.yml" "$CLUSTER_DIR/prometheus.saved"
configure_scrapes() {
  local pid
  sed "${1:-}" "$CLUSTER_DIR/prometheus.saved" >"$CLUSTER_DIR/prometheus.yml"
  read -r pid _ <"$CLUSTER_DIR/pids/prometheus"
  kill -HUP "$pid"
}
stop wva-0
MAX_STALE=5m start_wva wva-0 "$wva_port" # its default, so that what is held shows

# A model that nothing measures, because its pods have not the label by which Prometheus finds them.
variant unmeasured 2 'minReplicas: 1, maxReplicas: 5' | kubectl apply -f - >/dev/null
eventually 30 "a model whose pods nothing measures" check_finds "model unmeasured in namespace llm" NoSeries "Prometheus has none of the"
assert_eq "exit code for it" "$(check)" 1
eventually 60 "it has no number" has_no_number unmeasured "nothing has been measured and no earlier number is known"
throughout 20 "its HPA keeps its replicas" scale_is unmeasured 2
kubectl -n llm patch deployment unmeasured --type merge -p '{"spec":{"template":{"metadata":{"labels":{"llm-d.ai/model":"unmeasured"}}}}}' >/dev/null
eventually 90 "the fix: it is measured, and has a number" number_is unmeasured 1
eventually 30 "which its HPA follows" scale_is unmeasured 1
remove unmeasured

# A series that the analyzer needs is dropped: the queue of the engines.
hold_at 2
configure_scrapes '/^  relabel_configs:/i\  metric_relabel_configs: [{action: drop, source_labels: [__name__], regex: "vllm:num_requests_waiting"}]'
eventually 120 "a series that is dropped" check_finds "model llama in namespace llm" SeriesMissing "Prometheus has no series such as vllm:num_requests_waiting"
assert_eq "exit code for it" "$(check)" 0
eventually 60 "a condition says which one" says llama SignalsComplete "False SeriesDropped"
allow 4
eventually 60 "what is still measured adds replicas" value_is ">=" 3
set_load 0.1
throughout 45 "and nothing is removed, although the load has fallen" value_is ">=" 3

# Nothing is scraped any more. A check reads the samples of 75 s.
configure_scrapes '/^- job_name/,$d'
held=$(metric) && held=${held% *}
eventually 90 "no scrapes" check_finds "model llama in namespace llm" SeriesStale "the newest sample of a signal is"
assert_eq "exit code for it" "$(check)" 0
eventually 10 "the number is held with its age" held_with_age "$held" 55
eventually 60 "and then there is no series" check_finds "model llama in namespace llm" NoSeries "Prometheus has none of the"
assert_eq "exit code for it" "$(check)" 1
eventually 10 "the number is still held" held_with_age "$held" 70
kept=$held holds 10 "the HPA keeps its replicas"
configure_scrapes
eventually 60 "the fix: nothing is wrong any more" is_clean
eventually 180 "and the number follows the load" value_is "==" 1

# A Prometheus that does not answer.
assert_eq "exit code for another port" "$(PROMETHEUS_URL=http://127.0.0.1:1 check)" 1
eventually 0 "it is named" found "Prometheus at http://127.0.0.1:1" PrometheusUnreachable "every number is held"
stop wva-0
WVA_PROMETHEUS_URL=http://127.0.0.1:1 start_wva wva-0 "$wva_port"
eventually 20 "a program with that address holds the number" value_is "==" 1
eventually 80 "and withholds it once it is older than --max-stale" hpa_reports FailedGetExternalMetric "Prometheus at http://127.0.0.1:1"
kept=1 holds 10 "the HPA keeps its replicas"
stop wva-0
start_wva wva-0 "$wva_port"
eventually 60 "the fix: the HPA has a number again" scaling_active_is True

# ---- endpoint pickers

# sleeper NAME: a model that may go to zero, whose pods are those of the pool NAME
sleeper() { variant "$1" 1 'minReplicas: 0, maxReplicas: 2' "llm-d.ai/model: $1, pool: $1" | sed 's/^  minReplicas: 1$/  minReplicas: 0/'; }
# pool NAME: a pool, whose endpoint picker is the Service NAME
pool() {
  cat <<YAML
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: $1, namespace: llm}
spec: {selector: {matchLabels: {pool: $1}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: $1, port: {number: 9002}}}
YAML
}
# picker_service NAME, picker NAME: the Service of an endpoint picker, and its workload, whose pod has no node
picker_service() {
  printf -- '---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: llm}\nspec: {selector: {app: picker-%s}, ports: [{name: grpc, port: 9002}]}\n' "$1" "$1"
}
picker() {
  cat <<YAML
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: picker-$1, namespace: llm}
spec:
  serviceName: picker-$1
  selector: {matchLabels: {app: picker-$1}}
  template:
    metadata:
      labels: {app: picker-$1}
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: "${FLEET_ADDR##*:}", prometheus.io/path: /pods/llm/picker-$1-0/metrics}
    spec:
      nodeSelector: {kubernetes.io/hostname: none}
      containers: [{name: epp, image: ghcr.io/llm-d/llm-d-inference-scheduler, ports: [{name: grpc, containerPort: 9002}]}]
YAML
}
sleepers=(unpooled unserved unseen unready)
all_stay() {
  local name
  for name in "${sleepers[@]}"; do
    if ! { number_is "$name" 1 && scale_is "$name" 1; } >/dev/null; then
      echo "$name: $(number_of "$name") of $(scale_is "$name" "")"
      return 1
    fi
  done
  echo "${#sleepers[@]} of ${#sleepers[@]}"
}
all_say() {
  local name actual
  for name in "${sleepers[@]}"; do actual=$(says "$name" "$@") || { echo "$name: $actual"; return 1; }; done
  echo "${#sleepers[@]} of ${#sleepers[@]}"
}

kubectl create configmap wva-model-scale-to-zero-config -n "$release_namespace" --from-literal default=$'enable_scale_to_zero: true\nretention_period: 20s' \
  --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl apply -f "$e2e/objects/inference-pool-crds.yaml" >/dev/null
kubectl wait --for=condition=Established crd/inferencepools.inference.networking.k8s.io --timeout=30s >/dev/null
{
  for i in "${sleepers[@]}"; do sleeper "$i"; done
  for i in unserved unseen unready; do pool "$i"; done
  for i in unseen unready; do picker_service "$i"; done
  picker unready
} | kubectl apply -f - >/dev/null
eventually 60 "a model in no pool" check_finds "model unpooled in namespace llm" NoEndpointPicker "it may go to zero, and no InferencePool selects the pods"
eventually 0 "an endpoint picker whose Service does not exist" found "InferencePool llm/unserved" EndpointPickerNotFound "Service unserved, which does not exist"
eventually 0 "one whose pods are those of no workload" found "InferencePool llm/unseen" EndpointPickerNotSeen "selects the pods of no Deployment or StatefulSet"
eventually 0 "one without a Ready pod" found "InferencePool llm/unready" EndpointPickerNotReady "have no Ready one"
# Of what is not measured at all, it is not said.
lack_a_queue() { check >/dev/null && is "$(found_times SchedulerQueueMissing) == $1"; }
eventually 90 "once they are measured, Prometheus has no queue of all of them" lack_a_queue ${#sleepers[@]}
eventually 0 "of each it is said" found "model unready in namespace llm" SchedulerQueueMissing "the model may go to zero and never does"
assert_eq "exit code for them" "$(check)" 0
eventually 120 "idle for longer than their retention, a condition says what is missing" all_say SignalsComplete "False NoWakeUpSignal"
throughout 30 "and none is put to sleep" all_stay
kubectl -n llm patch statefulset picker-unready --type json -p '[{"op": "remove", "path": "/spec/template/spec/nodeSelector"}]' >/dev/null
kubectl -n llm delete pod picker-unready-0 --force --grace-period=0 >/dev/null 2>&1
eventually 60 "the fix: the endpoint picker is Ready" pod_is_ready picker-unready-0
put_on_loopback picker-unready-0
curl --fail --silent --show-error --output /dev/null -X POST "http://$FLEET_ADDR/queue?namespace=llm&pod=picker-unready-0&model=unready&waiting=0"
eventually 120 "its model is put to sleep" scale_is unready 0
check >/dev/null
assert_eq "findings about a picker that is not Ready" "$(found_times EndpointPickerNotReady)" 0
eventually 30 "and the others lack a queue" lack_a_queue $((${#sleepers[@]} - 1))
eventually 0 "the others are as before" found "InferencePool llm/unserved" EndpointPickerNotFound
remove "${sleepers[@]}"
kubectl -n llm delete statefulset picker-unready --wait=false >/dev/null
kubectl -n llm delete service unseen unready --wait=false >/dev/null
kubectl delete -f "$e2e/objects/inference-pool-crds.yaml" >/dev/null
kubectl -n "$release_namespace" delete configmap wva-model-scale-to-zero-config >/dev/null

# ---- nodes

pending_are() {
  local n
  n=$(kubectl -n llm get pods -l "app=$1" --field-selector status.phase=Pending -o name | wc -l)
  is "$n $2 $3"
}
# on_gpus NAME PRODUCT GPUS MIN MAX: a variant whose replicas need so many GPUs of a kind
on_gpus() {
  variant "$1" 1 "minReplicas: $4, maxReplicas: $5" "llm-d.ai/model: $1" |
    sed "s/containerPort: 8000}\]/&, resources: {limits: {nvidia.com\/gpu: \"$3\"}}/" |
    sed "s/^      terminationGracePeriodSeconds.*/&\n      nodeSelector: {nvidia.com\/gpu.product: $2}/"
}
three_run() { is "$(ready_of large) == 3"; }
# The one node has 16 GPUs of the kind, and llama needs one of them.
allow 1
eventually 60 "llama has one replica" ready_are "==" 1
{ on_gpus stranded NVIDIA-L40S 1 1 2; on_gpus large "$GPU_PRODUCT" 5 4 4; } | kubectl apply -f - >/dev/null
eventually 30 "no node has the GPUs of a variant" check_finds "VariantAutoscaling llm/stranded" AcceleratorNotFound "its replicas need L40S"
eventually 0 "the nodes have too few for the maximum of another one" found "VariantAutoscaling llm/large" NoRoomForMaximum "there is room for 3 replicas on the 1 node with H100: further pods stay Pending"
eventually 0 "all maxima together" found "accelerator H100" MaximaExceedNodes "the nodes have 16"
eventually 60 "the pod without such a node is Pending" pending_are stranded "==" 1
eventually 60 "the HPA of the other one asks for its maximum" scale_is large 4
eventually 30 "3 of its pods run" three_run
eventually 0 "and the fourth is Pending" pending_are large "==" 1
throughout 10 "it stays Pending" pending_are large "==" 1
check >/dev/null
kubectl -n llm patch va large --type merge -p "$(jq -r '.findings[] | select(.reason == "NoRoomForMaximum") | .fix' "$CLUSTER_DIR/check.json")" >/dev/null
kubectl -n llm patch va large --type merge -p '{"spec":{"minReplicas":3}}' >/dev/null
eventually 60 "the fix: 3 are asked for" scale_is large 3
eventually 30 "and none is Pending" pending_are large "==" 0
check >/dev/null
assert_eq "findings about its room" "$(found_times NoRoomForMaximum)" 0
gpu_node l40s-0 NVIDIA-L40S 2 | kubectl create -f - >/dev/null
eventually 60 "a node with the GPUs of the first one: its pod runs" pending_are stranded "==" 0
check >/dev/null
assert_eq "findings about its accelerator" "$(found_times AcceleratorNotFound)" 0
remove stranded large
kubectl delete node l40s-0 >/dev/null

# ---- rights

kept=1

kubectl get clusterrole -l app.kubernetes.io/instance=wva -o json |
  jq '.items[] | select(.metadata.name | endswith(":wva")) | del(.metadata.resourceVersion)' >"$CLUSTER_DIR/role.json"
# role_is EXPRESSION: the ClusterRole of the chart, changed by jq
role_is() { jq "$1" "$CLUSTER_DIR/role.json" | kubectl replace -f - >/dev/null; }
without() { role_is ".rules |= map(select(.resources | index(\"$1\") | not))"; }
# va_status_is NAME VALUE
va_status_is() { local actual; actual=$(kubectl -n llm get va "$1" -o json | jq -c .status) && echo "$actual" && [ "$actual" = "$2" ]; }
# as_pod [ARGUMENT...]: `wva check` as `kubectl exec` runs it, with the files and variables of a pod. Prints the exit code. Needs root.
as_pod() {
  local status=0
  kubectl -n "$release_namespace" create token wva >"$CLUSTER_DIR/pod.token"
  # shellcheck disable=SC2016 # expanded by the inner shell
  env -u KUBECONFIG HOME=/nowhere KUBERNETES_SERVICE_HOST=127.0.0.1 KUBERNETES_SERVICE_PORT="$API_PORT" POD_NAMESPACE="$release_namespace" \
    PROMETHEUS_BASE_URL="$PROMETHEUS_URL" unshare --mount sh -c 'dir=/run/secrets/kubernetes.io/serviceaccount && mount -t tmpfs tmpfs /run && mkdir -p $dir &&
      cp "$1/pod.token" $dir/token && cp "$1/pki/ca.crt" $dir/ca.crt && printf %s "$2" >$dir/namespace && shift 2 && exec "$@"' \
    sh "$CLUSTER_DIR" "$release_namespace" "$WVA" check --output json "$@" >"$CLUSTER_DIR/check.json" 2>"$CLUSTER_DIR/check.err" || status=$?
  echo $status
}
# pod_finds TEXT: a check in the pod has the finding
pod_finds() { as_pod >/dev/null && found "this pod's ServiceAccount" RightMissing "$1"; }

# Everybody may review their own rights.
assert_eq "exit code of a check in the pod" "$(as_pod)" 0
eventually 0 "none of its rights is missing" errors_are ""

without variantautoscalings/status
eventually 30 "no right to write statuses" check_finds "$account" RightMissing "it may not patch variantautoscalings/status.llmd.ai in all namespaces"
assert_eq "exit code for it" "$(check)" 1
eventually 30 "a check in the pod finds it too" pod_finds "it may not patch variantautoscalings/status.llmd.ai in all namespaces"
assert_eq "exit code for it" "$(as_pod)" 1
variant mute 1 'minReplicas: 1, maxReplicas: 5' 'llm-d.ai/model: mute' | kubectl apply -f - >/dev/null
eventually 60 "a new variant has a number" number_is mute 1
throughout 10 "and no status" va_status_is mute null
role_is .
eventually 60 "the fix: it has one" says mute TargetResolved TargetFound
remove mute

# What wva watches already stays watched until it starts again.
without pods
eventually 30 "no right to list pods" check_finds "$account" RightMissing "it may not list, watch pods in all namespaces"
eventually 0 "nothing is decided without it" found "$account" RightMissing "nothing is decided"
stop wva-0
! (start_wva wva-0 "$wva_port") >/dev/null 2>&1 || failed "an instance without the right is Ready"
passed "an instance that starts is not Ready: $(curl --silent --insecure "https://127.0.0.1:$wva_port/readyz" | grep -F informer-sync)"
eventually 90 "the number grows old, and is withheld" metric_fails_with "is withheld: its newest evidence is"
holds 10 "the HPA keeps its replicas"
role_is .
eventually 90 "the fix: the HPA has a number again" scaling_active_is True

delegator=$(kubectl get clusterrolebinding -l app.kubernetes.io/instance=wva -o name | grep auth-delegator)
kubectl get "$delegator" -o json | jq "$saved" >"$CLUSTER_DIR/delegator.json"
kubectl delete "$delegator" >/dev/null
eventually 30 "no right to review access" check_finds "$account" RightMissing "all reads of numbers are refused"
eventually 0 "nor tokens" found "$account" RightMissing "callers with a token are refused"
eventually 30 "a check in the pod finds it too" pod_finds "it may not create subjectaccessreviews.authorization.k8s.io in the cluster"
# Administrators are not reviewed.
eventually 90 "the HPA gets an error" hpa_reports FailedGetExternalMetric "SubjectAccessReview failed"
holds 10 "and keeps its replicas"
kubectl create -f "$CLUSTER_DIR/delegator.json" >/dev/null
eventually 60 "the fix: the HPA has a number again" scaling_active_is True

# ---- variants and configuration

variant lost 1 'minReplicas: 1, maxReplicas: 5' 'llm-d.ai/model: lost' |
  sed '/^kind: VariantAutoscaling/,/^---/s/name: lost}, modelID/name: gone}, modelID/' | kubectl apply -f - >/dev/null
kubectl -n llm patch hpa lost --type merge -p '{"spec":{"minReplicas":2}}' >/dev/null
eventually 30 "a target that does not exist" check_finds "VariantAutoscaling llm/lost" TargetNotFound "Deployment gone, which does not exist"
assert_eq "exit code for it" "$(check)" 1
eventually 30 "its condition says so" says lost TargetResolved False
eventually 30 "it has no number" has_no_number lost gone
kubectl -n llm patch va lost --type merge -p '{"spec":{"scaleTargetRef":{"name":"lost"}}}' >/dev/null
eventually 90 "the fix: it has one" number_is lost 1
remove lost

# reported TEXT: an event on the ConfigMap contains it
reported() {
  kubectl -n "$release_namespace" get events --field-selector reason=InvalidConfiguration,involvedObject.name=wva-saturation-scaling-config \
    -o jsonpath='{.items[*].message}' | grep -oF -- "$1" | head -n 1 | grep .
}
allow_explain
configure "$release_namespace" 'analyzerName: saturation-percnt'
eventually 30 "an entry of a ConfigMap that does not count" check_finds "ConfigMap $release_namespace/wva-saturation-scaling-config" InvalidConfiguration \
  'analyzerName "saturation-percnt" is not an analyzer'
assert_eq "exit code for it" "$(check)" 1
eventually 20 "a program that runs keeps its last good text" reported "its last good text stays in force"
throughout 10 "the analyzer is the one before" explanation_has "mean spare KV cache"
stop wva-0
start_wva wva-0 "$wva_port"
eventually 20 "one that starts has none" reported "the program's defaults are in force"
eventually 60 "the model gets another analyzer than the one that is meant" explanation_has " supports "
analyzer_is saturation-percent
eventually 30 "the fix: it gets the one that is meant" explanation_has "mean spare KV cache"
eventually 20 "nothing is wrong any more" is_clean

allow 10
kubectl apply -f "$e2e/objects/llama.yaml" >/dev/null
