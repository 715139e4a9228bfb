# shellcheck shell=bash
# Helpers of run, figures and the cases: assertions, and functions that read the test cluster, wva and the fleet.
# Sourced after $CLUSTER_DIR/env; needs e2e (this directory), WVA and FLEET (the programs).

# shellcheck source-path=SCRIPTDIR
. "$e2e/process.sh"
. "$e2e/control-plane/pki.sh"

model=llama
release_namespace=wva-system
lease=${LEADER_ELECTION_ID:-72dd1cf1.llm-d.ai}
external_metrics=/apis/external.metrics.k8s.io/v1beta1

# ---- assertions: each prints one line with the actual value; the first failure ends its case

passed() {
  printf 'ok    %s\n' "$*"
  echo passed >>"$CLUSTER_DIR/results"
}

failed() {
  printf 'FAIL  %s\n' "$*"
  echo failed >>"$CLUSTER_DIR/results"
  exit 1
}

# eventually SECONDS 'what' COMMAND...: runs COMMAND twice a second until it succeeds. Its output is the actual value.
eventually() {
  local seconds=$1 what=$2 began=$EPOCHREALTIME deadline=$((SECONDS + $1)) actual
  shift 2
  until actual=$("$@" 2>&1); do
    [ "$SECONDS" -lt "$deadline" ] || failed "$what: not within $seconds s; last value: $actual"
    sleep 0.5
  done
  passed "$what: $actual (after $(seconds_since "$began") s)"
}

# throughout SECONDS 'what' COMMAND...: COMMAND succeeds every time, twice a second, for SECONDS.
throughout() {
  local seconds=$1 what=$2 began=$EPOCHREALTIME deadline=$((SECONDS + $1)) actual
  shift 2
  while [ "$SECONDS" -lt "$deadline" ]; do
    actual=$("$@" 2>&1) || failed "$what: no longer after $(seconds_since "$began") s; value: $actual"
    sleep 0.5
  done
  passed "$what: $actual (for $seconds s)"
}

assert_eq() {
  [ "$2" = "$3" ] || failed "$1: $2, expected $3"
  passed "$1: $2"
}

# is 'LEFT OPERATOR RIGHT': compares numbers, including decimals, and prints them.
is() {
  echo "$1"
  awk "BEGIN { exit !($1) }"
}

calculate() { awk "BEGIN { OFMT = \"%.6f\"; print $1 }"; } # also of epoch times, which awk would otherwise round to 1,000 s
ceiling() { awk "BEGIN { x = $1; print (x > int(x)) ? int(x) + 1 : int(x) }"; }

# ---- the HPA and its target

of_hpa() { kubectl -n llm get hpa llama -o jsonpath="{$1}"; }
scaling_active() { of_hpa '.status.conditions[?(@.type=="ScalingActive")].'"$1"; }
replicas() { kubectl -n llm get deployment llama -o jsonpath='{.spec.replicas}'; }
ready() {
  local n
  n=$(kubectl -n llm get deployment llama -o jsonpath='{.status.readyReplicas}')
  echo "${n:-0}"
}

replicas_are() { is "$(replicas) $1 $2"; }
ready_are() { is "$(ready) $1 $2"; }
pods() { kubectl -n llm get pods -l app=llama -o jsonpath='{.items[*].metadata.name}'; }

# ready_is POD True|False: sets the readiness that a kubelet would report
ready_is() {
  kubectl -n llm patch pod "$1" --subresource=status --type strategic \
    -p "{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"$2\"},{\"type\":\"ContainersReady\",\"status\":\"$2\"}]}}" >/dev/null
}

pod_is_ready() { [ "$(kubectl -n llm get pod "$1" --ignore-not-found -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
# put_on_loopback POD: gives it an address at which a process of the test answers for it
put_on_loopback() {
  kubectl -n llm patch pod "$1" --subresource=status --type merge -p '{"status":{"podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}}' >/dev/null
}

scaling_active_is() {
  local status
  status=$(scaling_active status)
  echo "ScalingActive=$status $(scaling_active reason)"
  [ "$status" = "$1" ]
}

# hpa_reports REASON TEXT: ScalingActive is False with this reason, and its message contains TEXT (case-insensitive).
hpa_reports() {
  local actual
  actual="ScalingActive=$(scaling_active status) $(scaling_active reason): $(scaling_active message)"
  echo "${actual/unable to get external metric*external metrics API: /… }"
  [[ $actual == ScalingActive=False\ $1:* ]] && grep -qi -- "$2" <<<"$actual"
}

# settles SECONDS QUIET: waits until the replica count has not changed for QUIET seconds. Runs `on_step` at every change. Prints the count.
settles() {
  local deadline=$((SECONDS + $1)) quiet=$2 now last since=$SECONDS
  last=$(replicas)
  while [ $((SECONDS - since)) -lt "$quiet" ]; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "$last, still changing"; return 1; }
    sleep 0.5
    now=$(replicas)
    if [ "$now" != "$last" ]; then
      last=$now since=$SECONDS
      on_step
    fi
  done
  echo "$last"
}
on_step() { :; }

# ---- the metric, as the HPA reads it

# metric_from COMMAND...: COMMAND fetches the given path. Prints the value and the age of its evidence in seconds.
metric_from() {
  local body value time
  body=$("$@" "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dllama%2Cexported_namespace%3Dllm" 2>&1) ||
    { echo "$body"; return 1; }
  value=$(sed -n 's/.*"value": *"\{0,1\}\([^",}]*\).*/\1/p' <<<"$body")
  time=$(sed -n 's/.*"timestamp": *"\([^"]*\)".*/\1/p' <<<"$body")
  [ -n "$value" ] && [ -n "$time" ] || { echo "no value in: $body"; return 1; }
  echo "$value $(($(date +%s) - $(date -d "$time" +%s)))"
}
metric() { metric_from kubectl get --raw; }
value() {
  local actual status=0
  actual=$(metric) || status=$?
  [ $status = 0 ] && echo "${actual% *}" || echo "$actual"
  return $status
}
value_is() { local n; n=$(value) || { echo "$n"; return 1; }; is "$n $1 $2"; }

# object_value VERSION RESOURCE: the number as a metric of the object llama, as an HPA of type Object reads it
object_value() {
  local body
  body=$(kubectl get --raw "/apis/custom.metrics.k8s.io/$1/namespaces/llm/$2/llama/wva_desired_replicas" 2>&1) || { echo "$body"; return 1; }
  sed -n 's/.*"value": *"\{0,1\}\([^",}]*\).*/\1/p' <<<"$body"
}

# object_hpa_reports HPA TEXT: the HPA has no metric of its object, and its condition contains TEXT.
object_hpa_reports() {
  local actual
  actual=$(kubectl -n llm get hpa "$1" -o jsonpath='{range .status.conditions[?(@.type=="ScalingActive")]}{.status} {.reason}: {.message}{end}')
  echo "${actual/unable to get metric*object metrics API: /… }"
  [[ $actual == "False FailedGetObjectMetric: "*"$2"* ]]
}

# held_with_age VALUE SECONDS: the value is VALUE, and its evidence is at least SECONDS old.
held_with_age() {
  local actual
  actual=$(metric) || { echo "$actual"; return 1; }
  echo "${actual% *}, ${actual#* } s old"
  [ "${actual% *}" = "$1" ] && [ "${actual#* }" -ge "$2" ]
}

# metric_fails_with TEXT: there is no number, and the message contains TEXT (case-insensitive).
metric_fails_with() {
  local actual
  if actual=$(metric); then
    echo "a number: $actual"
    return 1
  fi
  echo "$actual"
  grep -qi -- "$1" <<<"$actual"
}

# ask_instance PORT PATH [CURL_ARGUMENT...]: sends a request to one instance with the aggregator's certificate. instance_host overrides 127.0.0.1.
ask_instance() {
  curl --fail-with-body --silent --show-error --max-time 5 --cacert "$CLUSTER_DIR/wva-ca.crt" \
    --cert "$CLUSTER_DIR/pki/front-proxy-client.crt" --key "$CLUSTER_DIR/pki/front-proxy-client.key" \
    -H 'X-Remote-User: system:serviceaccount:kube-system:horizontal-pod-autoscaler' -H 'X-Remote-Group: system:authenticated' \
    --connect-to "::${instance_host:-127.0.0.1}:$1" "${@:3}" "https://wva.$release_namespace.svc$2"
}

# metrics_of PORT: an instance's own /metrics, as Prometheus reads it
metrics_of() { ask_instance "$1" /metrics -H 'X-Remote-Group: system:masters'; }

# counted PORT NAME [LABEL]: the sum of a counter's series whose labels contain LABEL
counted() {
  metrics_of "$1" | awk -v name="$2" -v label="${3:-}" 'index($1, name) == 1 && index($1, label) { n += $NF } END { printf "%d", n }'
}

# instance_value_is PORT NUMBER: the instance at PORT answers NUMBER
instance_value_is() { local actual; actual=$(metric_from ask_instance "$1") || { echo "$actual"; return 1; }; echo "${actual% *}"; [ "${actual% *}" = "$2" ]; }

# value_or_refusal_of PORT NUMBER: the instance answers NUMBER, or that it has no number
value_or_refusal_of() {
  local actual status=0
  actual=$(ask_instance "$1" "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dllama" 2>&1) || status=$?
  case $status in
    0) actual=$(sed -n 's/.*"value": *"\{0,1\}\([^",}]*\).*/\1/p' <<<"$actual") ;;
    22) echo "no number: $(sed -n 's/.*"message": *"\([^"]*\).*/\1/p' <<<"$actual" | cut -c 1-120)" && return ;;
    *) echo "no answer: $actual" && return 1 ;;
  esac
  echo "$actual"
  [ "$actual" = "$2" ]
}

# allow_explain: creates an account that may read snapshots and nothing else, for explanation_has.
allow_explain() {
  {
    kubectl create serviceaccount support -n "$release_namespace" --dry-run=client -o yaml
    echo ---
    kubectl create clusterrole wva-snapshots --verb=get --non-resource-url=/debug/snapshots/latest --dry-run=client -o yaml
    echo ---
    kubectl create clusterrolebinding wva-snapshots --clusterrole=wva-snapshots --serviceaccount="$release_namespace:support" --dry-run=client -o yaml
  } | kubectl apply -f - >/dev/null
  kubectl -n "$release_namespace" create token support >"$CLUSTER_DIR/support.token"
  kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$CLUSTER_DIR/wva-ca.crt"
}

# explanation_has TEXT: `wva explain` of wva-0 contains TEXT, regardless of line breaks.
explanation_has() {
  local actual
  actual=$("$WVA" explain llm/llama --server "https://127.0.0.1:$wva_port" --server-name "wva.$release_namespace.svc" \
    --ca-file "$CLUSTER_DIR/wva-ca.crt" --token-file "$CLUSTER_DIR/support.token" 2>&1) || { echo "$actual"; return 1; }
  actual=$(tr -s ' \n' ' ' <<<"$actual")
  grep -oF -- "$1" <<<"$actual" | head -n 1 | grep . || { echo "$actual"; return 1; }
}

va_column() { kubectl -n llm get va llama -o jsonpath='{.status.desiredOptimizedAlloc.numReplicas}'; }
holder() { kubectl -n "$release_namespace" get lease "$lease" -o jsonpath='{.spec.holderIdentity}'; }

# Creates and deletes a namespace. The namespace controller reads the discovery of every APIService before it deletes one.
namespace_is_deleted() {
  local name=passing-$SECONDS
  kubectl create namespace "$name" >/dev/null && timeout 40 kubectl delete namespace "$name"
}

# allow N: sets the variant's maximum to N replicas
allow() { kubectl -n llm patch va llama --type merge -p "{\"spec\":{\"maxReplicas\":$1}}" >/dev/null; }

# condition_says TEXT: the message of the condition OptimizationReady contains TEXT.
condition_says() {
  local actual
  actual=$(kubectl -n llm get va llama -o jsonpath='{.status.conditions[?(@.type=="OptimizationReady")].message}')
  echo "$actual"
  [[ $actual == *"$1"* ]]
}

# hold_at N: sets the maximum to N and a load above the capacity of N pods, so that the number stays N until either changes. A higher number
# than N comes down to it at once; it stays there only when the load is seen.
hold_at() {
  allow "$1"
  set_load "$(calculate "($1 + 0.3) * $pod_rps")"
  eventually 150 "load above the capacity of $1 pods, maximum $1: the load needs more" condition_says "more replicas are needed, but the maximum is $1"
  eventually 10 "and the number is $1" value_is "==" "$1"
  eventually 30 "$1 replicas are Ready" ready_are "==" "$1"
}

# instance_values_are FIRST SECOND: the numbers of wva-0 and wva-1, read one after the other.
instance_values_are() {
  local first second
  first=$(metric_from ask_instance "$wva_port") || { echo "wva-0: $first"; return 1; }
  second=$(metric_from ask_instance "$second_port") || { echo "wva-1: $second"; return 1; }
  echo "wva-0 ${first% *}, wva-1 ${second% *}"
  [ "${first% *} ${second% *}" = "$1 $2" ]
}

# ---- GPUs of several kinds, and variants that differ by cost

# gpu_node NAME PRODUCT GPUS
gpu_node() {
  cat <<YAML
apiVersion: v1
kind: Node
metadata:
  name: $1
  labels: {kubernetes.io/hostname: $1, kubernetes.io/os: linux, kubernetes.io/arch: amd64, nvidia.com/gpu.product: $2}
status:
  capacity: {cpu: "128", memory: 1Ti, pods: "250", nvidia.com/gpu: "$3"}
  allocatable: {cpu: "128", memory: 1Ti, pods: "250", nvidia.com/gpu: "$3"}
---
YAML
}

# priced NAME PRODUCT COST: a variant of the model `spill`
priced() {
  sed -n '/^---$/,$p' "$e2e/objects/llama.yaml" | sed -e "s/\bname: llama\b/name: $1/; s/app: llama/app: $1/; s/variant_name: llama/variant_name: $1/" \
    -e "s/llm-d.ai\/model: llama/llm-d.ai\/model: spill/; s/modelID: llama/modelID: spill/; s/variantCost: .*/variantCost: \"$3\"/" \
    -e "s/terminationGracePeriodSeconds: 2/&\n      nodeSelector: {nvidia.com\/gpu.product: $2}/; /acceleratorName/d; s/^  labels:$/  labels: {}/"
}
ready_of() { local n; n=$(kubectl -n llm get deployment "$1" -o jsonpath='{.status.readyReplicas}'); echo "${n:-0}"; }
# both_ready OPERATOR NUMBER: Ready pods of the model `spill`, of both variants
both_ready() { is "$(ready_of cheap) + $(ready_of dear) $1 $2"; }
