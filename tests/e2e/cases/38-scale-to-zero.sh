# shellcheck shell=bash
# (38) To zero and back: idle models sleep only if something would wake them, and a request that waits at an endpoint picker (EPP) wakes its model:
# the number is served within a second, and either the real HPA follows it from zero or, with --wake-directly, wva scales the workload itself. The
# EPPs are pods of the fleet, which speaks their metrics in both eras; no real EPP runs.

wakes=20 # models of each way

# queue MODEL WAITING [ERA]: so many requests for MODEL wait at the endpoint picker
queue() {
  curl --fail --silent --show-error --output /dev/null -X POST \
    "http://$FLEET_ADDR/queue?namespace=llm&pod=${picker:-picker}-0&model=$1&waiting=$2&era=${3:-current}"
}
# ask_api_server PATH: without the start-up time of kubectl
ask_api_server() {
  curl --fail --silent --show-error --max-time 5 --cacert "$CLUSTER_DIR/pki/ca.crt" --cert "$CLUSTER_DIR/pki/admin.crt" \
    --key "$CLUSTER_DIR/pki/admin.key" "$API_URL$1"
}
number_of() { ask_api_server "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3D$1" | jq -r '.items[0].value'; }
scale_of() { ask_api_server "/apis/apps/v1/namespaces/llm/deployments/$1/scale" | jq -r '.spec.replicas // 0'; }
number_is() { local n; n=$(number_of "$1" 2>&1) || { echo "$n"; return 1; }; echo "$n"; [ "$n" = "$2" ]; }
scale_is() { local n; n=$(scale_of "$1") && echo "$n" && [ "$n" = "$2" ]; }
# all_are COMMAND NUMBER NAME...: of each variant, COMMAND prints NUMBER
all_are() {
  local name actual
  for name in "${@:3}"; do
    actual=$("$1" "$name" 2>&1) && [ "$actual" = "$2" ] || { echo "$name: $actual"; return 1; }
  done
  echo "$2 of $(($# - 2))"
}
is_ready_of() { is "$(kubectl -n llm get deployment "$1" -o jsonpath='{.status.readyReplicas}')0 >= 10"; }
# complete_says NAME TEXT: the condition SignalsComplete contains TEXT
complete_says() {
  local actual
  actual=$(kubectl -n llm get va "$1" -o jsonpath='{range .status.conditions[?(@.type=="SignalsComplete")]}{.status} {.reason}: {.message}{end}')
  echo "$actual"
  [[ $actual == *"$2"* ]]
}

quota_is_counted() { kubectl -n llm get quota none -o jsonpath='{.status.hard}' | grep -F amd.com/gpu; }
# both_sleep: prefill and decode have the number 0 in one answer. Writes answers in which only one of them has into $CLUSTER_DIR/uneven.
both_sleep() {
  local numbers
  numbers=$(ask_api_server "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name+in+(prefill,decode)" | jq -c '[.items[].value]') || return
  echo "$numbers"
  case $numbers in
    '["0","0"]') return ;;
    *'"0"'*) echo "$numbers" >>"$CLUSTER_DIR/uneven" ;;
  esac
  return 1
}

# sleeper NAME MODEL REPLICAS POOL START [ROLE]: a variant that may be at zero, of a pool, whose pods are Ready START seconds after their creation
sleeper() {
  cat <<YAML
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: $1, namespace: llm}
spec:
  replicas: $3
  selector: {matchLabels: {app: $1}}
  template:
    metadata:
      labels: {app: $1, llm-d.ai/model: $2, pool: $4, llm-d.ai/role: ${6:-both}}
      annotations:
        pod-create.stage.kwok.x-k8s.io/delay: 1s
        pod-create.stage.kwok.x-k8s.io/jitter-delay: 1s
        pod-ready.stage.kwok.x-k8s.io/delay: $(($5 - 1))s
        pod-ready.stage.kwok.x-k8s.io/jitter-delay: $(($5 - 1))s
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: vllm, image: vllm/vllm-openai, ports: [{name: http, containerPort: 8000}]}]
---
apiVersion: llmd.ai/v1alpha1
kind: VariantAutoscaling
metadata: {name: $1, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: $1}
  modelID: $2
  minReplicas: 0
  maxReplicas: 2
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: $1, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: $1}
  minReplicas: 0
  maxReplicas: 2
  metrics:
    - type: External
      external:
        metric: {name: wva_desired_replicas, selector: {matchLabels: {variant_name: $1}}}
        target: {type: AverageValue, averageValue: "1"}
  behavior:
    scaleUp: {stabilizationWindowSeconds: 0}
    scaleDown: {stabilizationWindowSeconds: 0}
YAML
}

# wake NAME MODEL: a request waits for MODEL. Prints the milliseconds until the number of NAME is above 0, and until its workload is.
wake() {
  local began=$EPOCHREALTIME number="" deadline=$((SECONDS + 20))
  queue "$2" 1
  while [ $SECONDS -lt $deadline ]; do
    [ -n "$number" ] || ! number_is "$1" 1 >/dev/null || number=$(milliseconds_since "$began")
    if [ "$(scale_of "$1")" != 0 ]; then
      echo "${number:-never} $(milliseconds_since "$began")"
      return
    fi
  done
  echo "${number:-never} never"
}
milliseconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%d", (to - from) * 1000 }'; }
# median_of COLUMN FILE, most_of COLUMN FILE: of the second, `never` is the most
median_of() { awk -v column="$1" '{ print $column }' "$2" | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
most_of() { awk -v column="$1" '$column == "never" { never = 1 } $column > most { most = $column } END { print never ? "never" : most }' "$2"; }
# median_is_at_most WHAT FILE COLUMN LIMIT
median_is_at_most() {
  local median most
  median=$(median_of "$3" "$2") most=$(most_of "$3" "$2")
  [ "$most" != never ] && [ "$median" -le "$4" ] || failed "$1: median $median ms, most $most ms, expected a median of at most $4 ms: $(tr '\n' ';' <"$2")"
  passed "$1: median $median ms of $(wc -l <"$2"), most $most ms, of at most $4"
}

by_hpa=() directly=()
for ((i = 0; i < wakes; i++)); do by_hpa+=("hpa-$i") directly+=("direct-$i"); done

# The pools, whose definitions are installed while wva runs.
kubectl create configmap wva-model-scale-to-zero-config -n "$release_namespace" --from-literal default=$'enable_scale_to_zero: true\nretention_period: 20s' \
  --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl apply -f "$e2e/objects/inference-pool-crds.yaml" >/dev/null
kubectl wait --for=condition=Established crd/inferencepools.inference.networking.k8s.io crd/inferencepools.inference.networking.x-k8s.io --timeout=30s >/dev/null
pickers() { sed "s/\$FLEET_PORT/${FLEET_ADDR##*:}/" "$e2e/objects/pickers.yaml" | kubectl apply -f - >/dev/null; }
pickers
for picker in earlier-picker picker; do
  eventually 60 "the endpoint picker $picker is Ready" pod_is_ready $picker-0
  put_on_loopback $picker-0
done
{
  sleeper chat chat 1 current 5
  sleeper mute mute 1 none 5
  sleeper slow slow 0 current 25
  sleeper left left 0 current 5
  sleeper prefill split 0 earlier 5 prefill
  sleeper decode split 0 earlier 5 decode
  sleeper cheapest choice 0 current 5 |
    sed 's/modelID: .*/&\n  variantCost: "1.0"/; s/terminationGracePeriodSeconds: .*/&\n      nodeSelector: {nvidia.com\/gpu.product: NVIDIA-B300}/'
  sleeper next choice 0 current 5 | sed 's/modelID: .*/&\n  variantCost: "9.0"/'
  sleeper denied limited 0 current 5 |
    sed 's/modelID: .*/&\n  variantCost: "1.0"/; s/containerPort: 8000}\]/&, resources: {limits: {amd.com\/gpu: "1"}}/'
  sleeper allowed limited 0 current 5 | sed 's/modelID: .*/&\n  variantCost: "9.0"/'
  for i in "${by_hpa[@]}"; do sleeper "$i" "$i" 1 current 5; done
  for i in "${directly[@]}"; do sleeper "$i" "$i" 0 current 5; done
} | kubectl apply -f - >/dev/null
for i in chat slow left choice limited "${by_hpa[@]}" "${directly[@]}"; do queue "$i" 0; done
picker=earlier-picker queue split 0 earlier

# Sleep.
eventually 180 "an idle model whose queue is measured: the number is 0" number_is chat 0
eventually 30 "the HPA scales it to zero" scale_is chat 0
eventually 120 "a model without a queue: a condition says which signal is missing" complete_says mute "False NoWakeUpSignal: no fresh llm_d_epp_flow_control_queue_size"
eventually 0 "and how to get it" complete_says mute "switch its flow control on and have its metrics read"
throughout 10 "and it is not put to sleep" scale_is mute 1
"$WVA" check -n llm --scale-to-zero --output json >"$CLUSTER_DIR/check.json" || true
unseen=$(jq -c '[.findings[] | select(.reason | test("EndpointPicker")) | .object] | sort' "$CLUSTER_DIR/check.json")
assert_eq "a check finds whose requests nobody would see" "$unseen" '["model mute in namespace llm"]'
kubectl -n llm annotate va mute wva.llmd.ai/woken-by="KEDA's HTTP add-on" >/dev/null
eventually 120 "once something else wakes it, it sleeps too" scale_is mute 0
eventually 60 "models at zero have the number 0" all_are number_of 0 slow left prefill decode cheapest next denied allowed "${by_hpa[@]}" "${directly[@]}"
# An HPA of Kubernetes 1.36 and later leaves a workload at zero that it has not scaled there itself.
eventually 60 "their HPAs have scaled them to zero" all_are scale_of 0 chat mute "${by_hpa[@]}"
throughout 10 "and they stay there" all_are scale_of 0 chat mute "${by_hpa[@]}"

# By the HPA.
: >"$CLUSTER_DIR/by-hpa"
for i in "${by_hpa[@]}"; do wake "$i" "$i" >>"$CLUSTER_DIR/by-hpa"; done
median_is_at_most "from the first waiting request to the number" "$CLUSTER_DIR/by-hpa" 1 1000
median_is_at_most "to the HPA's scale, with a sync every ${HPA_SYNC%s} s" "$CLUSTER_DIR/by-hpa" 2 $((1000 + ${HPA_SYNC%s} * 1000))
for i in "${by_hpa[@]}"; do queue "$i" 0; done

# Directly, with the right that the chart grants.
stop wva-0
install_chart --set wakeDirectly=true
WVA_ARGS=--wake-directly baseline
eventually 60 "with --wake-directly: the numbers are still 0" all_are number_of 0 slow left prefill decode "${directly[@]}"
: >"$CLUSTER_DIR/directly"
for i in "${directly[@]}"; do wake "$i" "$i" >>"$CLUSTER_DIR/directly"; done
median_is_at_most "from the first waiting request to the scale that wva writes" "$CLUSTER_DIR/directly" 2 1000
began=$EPOCHREALTIME
queue slow 1
eventually 30 "a pod that starts in 25 s is Ready" is_ready_of slow
is_within=$(seconds_since "$began")
[ "${is_within%.*}" -lt 30 ] || failed "from the request to Ready: $is_within s, expected at most 30"
passed "from the request to Ready: $is_within s, of at most 30"
picker=earlier-picker queue split 1 earlier
eventually 5 "prefill and decode wake together, by an EPP of the earlier era" all_are scale_of 1 prefill decode
picker=earlier-picker queue split 0 earlier
for i in "${directly[@]}" slow; do queue "$i" 0; done
throughout 10 "what was woken stays for its retention, and no HPA undoes it" all_are scale_of 1 "${directly[@]:$((wakes - 3))}" slow

# Of several variants the cheapest wakes, and where no node has room for it, the next one.
queue choice 1
eventually 5 "of several variants, the cheapest wakes" scale_is cheapest 1
eventually 60 "no node has room for it, and the next one wakes" is_ready_of next
assert_eq "Ready pods of the cheapest" "$(kubectl -n llm get deployment cheapest -o jsonpath='{.status.readyReplicas}')" ""
queue choice 0
kubectl -n llm create quota none --hard=requests.amd.com/gpu=0 >/dev/null
eventually 20 "a quota for it is counted" quota_is_counted
throughout 2 "for longer than wva takes to see it" quota_is_counted
queue limited 1
eventually 5 "where a quota denies the cheapest, the next one wakes at once" scale_is allowed 1
assert_eq "replicas of the one that is denied" "$(scale_of denied)" 0
queue limited 0
kubectl -n llm delete quota none >/dev/null
eventually 60 "once idle, prefill and decode sleep" both_sleep
assert_eq "answers in which one of them slept and the other did not" "$(cat "$CLUSTER_DIR/uneven" 2>/dev/null)" ""
eventually 10 "and so do their workloads" all_are scale_of 0 prefill decode

# An EPP that fails wakes nothing, and without a pool, Prometheus tells of the request a little later.
mark_log wva-0
queue left 1 broken
throughout 5 "an EPP that answers with something else: the number stays 0" number_is left 0
queue left 0
kubectl -n llm delete inferencepools.inference.networking.k8s.io pool >/dev/null
queue left 1
eventually 20 "a pool that is deleted: Prometheus still tells of the request" number_is left 1
assert_eq "lines of warnings and errors in the log" "$(log_since wva-0 | grep -cE ' (WARN|ERROR) ' || true)" 0

for i in deployment va hpa; do
  kubectl -n llm delete "$i" chat mute slow left prefill decode cheapest next denied allowed "${by_hpa[@]}" "${directly[@]}" --wait=false >/dev/null
done

# Without Prometheus: engines and the EPP are read directly. The flag lets models go to zero, and the object says after what time.
stop wva-0
kubectl -n "$release_namespace" delete configmap wva-model-scale-to-zero-config >/dev/null
pickers
sleeper scraped scraped 1 current 5 | sed -e 's/kind: Deployment/kind: StatefulSet/; s/^  replicas: /  serviceName: scraped\n&/' \
  -e 's/modelID: .*/&\n  scaleToZero: {idleTimeout: 20s}/' \
  -e "s|^      annotations:|&\n        prometheus.io/port: \"${FLEET_ADDR##*:}\"\n        prometheus.io/path: /pods/llm/scraped-0/metrics|" | kubectl apply -f - >/dev/null
eventually 60 "a pod that is read directly is Ready" pod_is_ready scraped-0
put_on_loopback scraped-0
WVA_ARGS="--source=scrape --wake-directly --scale-to-zero" baseline
for i in scraped left; do queue "$i" 0; done
scraped_is() { is "$(kubectl -n llm get statefulset scraped -o jsonpath='{.spec.replicas}') == $1"; }
eventually 120 "the idle model sleeps" scraped_is 0
queue an-adapter 1
eventually 5 "and a request under another name wakes it, the only model of its pool" scraped_is 1
queue an-adapter 0
for i in statefulset va hpa; do kubectl -n llm delete "$i" scraped --wait=false >/dev/null; done
kubectl delete -f "$e2e/objects/inference-pool-crds.yaml" >/dev/null
kubectl -n llm delete statefulset,service picker earlier-picker --wait=false >/dev/null
stop wva-0
install_chart
baseline
