# shellcheck shell=bash
# The words that run, figures and the cases are written in: assertions, and hands and eyes on the bed, wva and the fleet.
# Sourced after $BED/env; needs e2e (this directory), WVA and FLEET (the programs).

# shellcheck source-path=SCRIPTDIR
. "$e2e/process.sh"
. "$e2e/control-plane/pki.sh"

model=llama
release_namespace=wva-system
lease=${LEADER_ELECTION_ID:-72dd1cf1.llm-d.ai}
external_metrics=/apis/external.metrics.k8s.io/v1beta1

# ---- assertions: one line each, with the figure seen; the first that fails ends its case

passed() {
  printf 'ok    %s\n' "$*"
  echo passed >>"$BED/results"
}

failed() {
  printf 'FAIL  %s\n' "$*"
  echo failed >>"$BED/results"
  exit 1
}

# eventually SECONDS 'what' COMMAND...: asks twice a second until COMMAND succeeds. What it prints is the figure.
eventually() {
  local seconds=$1 what=$2 began=$EPOCHREALTIME deadline=$((SECONDS + $1)) seen
  shift 2
  until seen=$("$@" 2>&1); do
    [ "$SECONDS" -lt "$deadline" ] || failed "$what: not within $seconds s; last seen: $seen"
    sleep 0.5
  done
  passed "$what: $seen (after $(seconds_since "$began") s)"
}

# throughout SECONDS 'what' COMMAND...: COMMAND succeeds every time it is asked, for so long.
throughout() {
  local seconds=$1 what=$2 began=$EPOCHREALTIME deadline=$((SECONDS + $1)) seen
  shift 2
  while [ "$SECONDS" -lt "$deadline" ]; do
    seen=$("$@" 2>&1) || failed "$what: no longer after $(seconds_since "$began") s; seen: $seen"
    sleep 0.5
  done
  passed "$what: $seen (for $seconds s)"
}

assert_eq() {
  [ "$2" = "$3" ] || failed "$1: $2, expected $3"
  passed "$1: $2"
}

# is 'LEFT OPERATOR RIGHT': compares numbers, decimals too, and shows them.
is() {
  echo "$1"
  awk "BEGIN { exit !($1) }"
}

calculate() { awk "BEGIN { OFMT = \"%.6f\"; print $1 }"; } # moments too, which awk would round to a thousand seconds
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

# ready_is POD True|False: as its kubelet would say
ready_is() {
  kubectl -n llm patch pod "$1" --subresource=status --type strategic \
    -p "{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"$2\"},{\"type\":\"ContainersReady\",\"status\":\"$2\"}]}}" >/dev/null
}

scaling_active_is() {
  local status
  status=$(scaling_active status)
  echo "ScalingActive=$status $(scaling_active reason)"
  [ "$status" = "$1" ]
}

# hpa_complains REASON TEXT: ScalingActive is False for this reason and its message has this text, whatever its case.
hpa_complains() {
  local seen
  seen="ScalingActive=$(scaling_active status) $(scaling_active reason): $(scaling_active message)"
  echo "${seen/unable to get external metric*external metrics API: /… }"
  [[ $seen == ScalingActive=False\ $1:* ]] && grep -qi -- "$2" <<<"$seen"
}

# settles SECONDS QUIET: waits until the replica count has not changed for QUIET seconds; runs `on_step` at every change. Prints the count.
settles() {
  local deadline=$((SECONDS + $1)) quiet=$2 now last since=$SECONDS
  last=$(replicas)
  while [ $((SECONDS - since)) -lt "$quiet" ]; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "$last, still moving"; return 1; }
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

# ---- the metric, as the HPA asks for it

# metric_from COMMAND...: COMMAND fetches the path it is given; prints the value and the age of its evidence in seconds.
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
  local seen status=0
  seen=$(metric) || status=$?
  [ $status = 0 ] && echo "${seen% *}" || echo "$seen"
  return $status
}
value_is() { local n; n=$(value) || { echo "$n"; return 1; }; is "$n $1 $2"; }

# object_value VERSION RESOURCE: the number as a metric of the object llama, as an HPA of type Object asks for it
object_value() {
  local body
  body=$(kubectl get --raw "/apis/custom.metrics.k8s.io/$1/namespaces/llm/$2/llama/wva_desired_replicas" 2>&1) || { echo "$body"; return 1; }
  sed -n 's/.*"value": *"\{0,1\}\([^",}]*\).*/\1/p' <<<"$body"
}

# object_complains HPA TEXT: it has no metric of its object, and its condition has this text.
object_complains() {
  local seen
  seen=$(kubectl -n llm get hpa "$1" -o jsonpath='{range .status.conditions[?(@.type=="ScalingActive")]}{.status} {.reason}: {.message}{end}')
  echo "${seen/unable to get metric*object metrics API: /… }"
  [[ $seen == "False FailedGetObjectMetric: "*"$2"* ]]
}

# held_with_age VALUE SECONDS: the value is this and what it rests on is at least so old.
held_with_age() {
  local seen
  seen=$(metric) || { echo "$seen"; return 1; }
  echo "${seen% *}, ${seen#* } s old"
  [ "${seen% *}" = "$1" ] && [ "${seen#* }" -ge "$2" ]
}

# metric_fails_with TEXT: no number, and the message has this text, whatever its case.
metric_fails_with() {
  local seen
  if seen=$(metric); then
    echo "a number: $seen"
    return 1
  fi
  echo "$seen"
  grep -qi -- "$1" <<<"$seen"
}

# The same question to one instance, with the aggregator's own certificate: PORT PATH [CURL_ARGUMENT...]; instance_host: 127.0.0.1, or this.
ask_instance() {
  curl --fail-with-body --silent --show-error --max-time 5 --cacert "$BED/wva-ca.crt" \
    --cert "$BED/pki/front-proxy-client.crt" --key "$BED/pki/front-proxy-client.key" \
    -H 'X-Remote-User: system:serviceaccount:kube-system:horizontal-pod-autoscaler' -H 'X-Remote-Group: system:authenticated' \
    --connect-to "::${instance_host:-127.0.0.1}:$1" "${@:3}" "https://wva.$release_namespace.svc$2"
}

# metrics_of PORT: what an instance tells of itself, as Prometheus reads it
metrics_of() { ask_instance "$1" /metrics -H 'X-Remote-Group: system:masters'; }

# counted PORT NAME [LABEL]: the sum of a counter's series that have this text among their labels
counted() {
  metrics_of "$1" | awk -v name="$2" -v label="${3:-}" 'index($1, name) == 1 && index($1, label) { n += $NF } END { printf "%d", n }'
}

# instance_says PORT NUMBER: the number of one instance
instance_says() { local seen; seen=$(metric_from ask_instance "$1") || { echo "$seen"; return 1; }; echo "${seen% *}"; [ "${seen% *}" = "$2" ]; }

# says_or_refuses PORT NUMBER: it answers, and with no other number than this
says_or_refuses() {
  local seen status=0
  seen=$(ask_instance "$1" "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dllama" 2>&1) || status=$?
  case $status in
    0) seen=$(sed -n 's/.*"value": *"\{0,1\}\([^",}]*\).*/\1/p' <<<"$seen") ;;
    22) echo "no number: $(sed -n 's/.*"message": *"\([^"]*\).*/\1/p' <<<"$seen" | cut -c 1-120)" && return ;;
    *) echo "no answer: $seen" && return 1 ;;
  esac
  echo "$seen"
  [ "$seen" = "$2" ]
}

# may_explain: from now on `explained` may ask, with an account that may read snapshots and nothing else.
may_explain() {
  {
    kubectl create serviceaccount support -n "$release_namespace" --dry-run=client -o yaml
    echo ---
    kubectl create clusterrole wva-snapshots --verb=get --non-resource-url=/debug/snapshots/latest --dry-run=client -o yaml
    echo ---
    kubectl create clusterrolebinding wva-snapshots --clusterrole=wva-snapshots --serviceaccount="$release_namespace:support" --dry-run=client -o yaml
  } | kubectl apply -f - >/dev/null
  kubectl -n "$release_namespace" create token support >"$BED/support.token"
  kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$BED/wva-ca.crt"
}

# explained TEXT: what wva-0 explains has this text, wherever its lines break.
explained() {
  local seen
  seen=$("$WVA" explain llm/llama --server "https://127.0.0.1:$wva_port" --server-name "wva.$release_namespace.svc" \
    --ca-file "$BED/wva-ca.crt" --token-file "$BED/support.token" 2>&1) || { echo "$seen"; return 1; }
  seen=$(tr -s ' \n' ' ' <<<"$seen")
  grep -oF -- "$1" <<<"$seen" | head -n 1 | grep . || { echo "$seen"; return 1; }
}

va_column() { kubectl -n llm get va llama -o jsonpath='{.status.desiredOptimizedAlloc.numReplicas}'; }
holder() { kubectl -n "$release_namespace" get lease "$lease" -o jsonpath='{.spec.holderIdentity}'; }

# A namespace comes and goes: the namespace controller reads the discovery of every APIService before it lets one go.
namespace_goes() {
  local name=passing-$SECONDS
  kubectl create namespace "$name" >/dev/null && timeout 40 kubectl delete namespace "$name"
}

# allow N: the most replicas that the variant may have
allow() { kubectl -n llm patch va llama --type merge -p "{\"spec\":{\"maxReplicas\":$1}}" >/dev/null; }

# stand_at N: more load than N pods carry and at most N allowed, so the number is N and stays N, until load or bound change.
stand_at() {
  allow "$1"
  set_load "$(calculate "($1 + 0.3) * $one")"
  eventually 150 "more load than $1 pods carry, $1 allowed: the number is $1" value_is "==" "$1"
  eventually 30 "and so are the replicas" ready_are "==" "$1"
}

# instances_say FIRST SECOND: the numbers of wva-0 and wva-1, asked one after the other.
instances_say() {
  local first second
  first=$(metric_from ask_instance "$wva_port") || { echo "wva-0: $first"; return 1; }
  second=$(metric_from ask_instance "$second_port") || { echo "wva-1: $second"; return 1; }
  echo "wva-0 ${first% *}, wva-1 ${second% *}"
  [ "${first% *} ${second% *}" = "$1 $2" ]
}
