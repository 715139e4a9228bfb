# shellcheck shell=bash
# (46) Beside case 45: ScaledObjects of the real KEDA follow the number of llama by the triggers prometheus and metrics-api, an HPA follows it by a
# metric of the object, and a plain HPA is handed to KEDA and back without a replica more or less. At the same changes of the number, the time
# until spec.replicas is measured for each way. Certificate, rights and ScaledObjects are those that docs/keda.md prints.

. "$e2e/keda.sh"
choose_port scaler_port
changes=10
recording=$CLUSTER_DIR/logs/replicas.log

# pin N: the number is N at once, whatever the load is
pin() { kubectl -n llm patch va llama --type merge -p "{\"spec\":{\"minReplicas\":$1,\"maxReplicas\":$1}}" >/dev/null; }
# all_have N DEPLOYMENT...: each has N replicas
all_have() {
  local actual
  actual=$(kubectl -n llm get deployments "${@:2}" -o json | jq -r '(.items // [.])[] | "\(.metadata.name) \(.spec.replicas)"')
  echo "${actual//$'\n'/, }"
  ! grep -qv " $1\$" <<<"$actual"
}
served() {
  curl --fail --silent --show-error --max-time 5 --cacert "$certificates/wva-ca.crt" --cert "$certificates/user.crt" --key "$certificates/user.key" \
    --connect-to "wva.$release_namespace.svc:443:127.0.0.1:$wva_port" \
    "https://wva.$release_namespace.svc$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dllama" | jq -r '.items[0].value'
}
# only_had N DEPLOYMENT SINCE: the recording of all writes has no other spec.replicas since then
only_had() {
  local actual
  alive replicas || { echo "the recording has ended"; return 1; }
  actual=$(awk -v since="$3" -v name="$2" '$2 == name && $1 < since { before = $3 } $2 == name && $1 >= since && $3 != before { seen = seen ", " $3 }
    END { print before seen }' "$recording")
  echo "$actual"
  [ "$actual" = "$1" ]
}

# measure DEPLOYMENT...: changes the number again and again, and writes for each Deployment the seconds until spec.replicas is the number: from the
# change of the bounds, and from the first answer with the number. That is asked for all the time, so the last decision is at most --max-age old; an
# HPA that asks wva after that makes the next one, and has the number at once.
measure() {
  local change name number began answered deadline
  for name in "$@"; do : >"$CLUSTER_DIR/seconds-$name"; done
  for ((change = 0; change < changes; change++)); do
    number=$((change % 2 ? 2 : 4))
    sleep "$(calculate "1 + 5 * $RANDOM / 32768")" # at any time between two syncs, polls and scrapes
    began=$EPOCHREALTIME deadline=$((SECONDS + 60))
    pin "$number"
    until [ "$(served)" = "$number" ]; do [ "$SECONDS" -lt "$deadline" ] || failed "the number does not become $number"; sleep 0.05; done
    answered=$EPOCHREALTIME
    until all_have "$number" "$@" >/dev/null; do [ "$SECONDS" -lt "$deadline" ] || failed "not at $number: $(all_have "$number" "$@")"; sleep 0.5; done
    sleep 0.2
    for name in "$@"; do
      awk -v began="$began" -v answered="$answered" -v name="$name" -v number="$number" '$1 >= began && $2 == name && $3 == number {
        print $1 - began, ($1 > answered) * ($1 - answered); exit }' "$recording" >>"$CLUSTER_DIR/seconds-$name"
    done
  done
}
# took DEPLOYMENT 'way' ['settings']
took() {
  local seconds=$CLUSTER_DIR/seconds-$1
  [ "$(wc -l <"$seconds")" = "$changes" ] || failed "$2: $(wc -l <"$seconds") of $changes changes were recorded"
  passed "$2: spec.replicas follows the change of the bounds after $(spread 1), the first answer with the number after $(spread 2)" \
    "($changes changes, HPA sync ${HPA_SYNC%s} s${3:+, $3})"
}
# spread FIELD: of the file `seconds`
spread() {
  awk -v field="$1" '{ print $field }' "$seconds" | sort -n |
    awk '{ all[NR] = $1 } END { printf "median %.1f s, at most %.1f s", (all[int((NR + 1) / 2)] + all[int(NR / 2) + 1]) / 2, all[NR] }'
}

# deployment NAME: its pods are not model servers
deployment() { sed '/^---$/,$d' "$e2e/objects/follower.yaml" | sed "s/follower/$1/"; }
# printed TEXT LANGUAGE: the first block of docs/keda.md in this language that contains TEXT, with the addresses of this test cluster
printed() {
  awk -v text="$1" -v begin="\`\`\`$2" '$0 == begin { inside = 1; block = ""; next }
    /^```/ { if (inside && index(block, text)) { printf "%s", block; exit } inside = 0 } inside { block = block $0 "\n" }' "$root/docs/keda.md" |
    sed "s|wva.wva-system.svc:9443|wva.wva-system.svc:$scaler_port|; s|wva.wva-system.svc/|wva.wva-system.svc:$wva_port/|
      s|http://prometheus.monitoring.svc:9090|$PROMETHEUS_URL|" | grep .
}
# scaled_object NAME TYPE [EXPRESSION]: the printed ScaledObject with the printed trigger of this type, after the sed expression about that. Only the
# one of llama takes over an HPA.
scaled_object() {
  local others=""
  [ "$1" = llama ] || others="/transfer-hpa-ownership/d; /^ *name: llama *# the HPA/d; s/name: llama/name: $1/"
  echo ---
  printed transfer-hpa-ownership yaml | sed "/^ *triggers:/,\$d; $others"
  printed "type: $2" yaml | sed "s/^/  /; ${3:-}"
}
keda_has_hpa() {
  kubectl -n llm get hpa llama -o jsonpath='{.metadata.ownerReferences[0].kind} {.spec.metrics[0].external.metric.name}' | grep -x 'ScaledObject s0-.*'
}

# wva with its external scaler, with the rights and the custom metrics that its chart grants; and Prometheus scrapes it.
chart=(--set apiService.custom.enabled=true --set-json 'metrics.readers=[{"name":"prometheus","namespace":"monitoring"},{"name":"keda-reader","namespace":"keda"}]')
stop wva-0
install_chart "${chart[@]}"
WVA_ARGS="--external-scaler-port $scaler_port" baseline
eventually 40 "both custom APIServices are available" custom_available
start_keda
kubectl -n "$release_namespace" get secret wva-tls -o jsonpath='{.data.ca\.crt}' | base64 -d >"$certificates/wva-ca.crt"
kubectl create namespace monitoring --dry-run=client -o yaml | kubectl apply -f - >/dev/null
for account in monitoring/prometheus keda/keda-reader; do
  kubectl -n "${account%/*}" create serviceaccount "${account#*/}" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
done
kubectl -n monitoring create token prometheus --duration 2h >"$certificates/prometheus.token"
cp "$CLUSTER_DIR/prometheus.yml" "$CLUSTER_DIR/prometheus.yml.before"
cat >>"$CLUSTER_DIR/prometheus.yml" <<YAML
- job_name: wva
  scheme: https
  authorization: {credentials_file: $certificates/prometheus.token}
  tls_config: {ca_file: $certificates/wva-ca.crt, server_name: wva.$release_namespace.svc}
  static_configs: [{targets: ["127.0.0.1:$wva_port"], labels: {namespace: $release_namespace}}]
YAML
signal_to prometheus HUP
# shellcheck disable=SC2016 # expanded by the inner shell
spawn replicas bash -c 'kubectl -n llm get deployments --watch -o jsonpath="{.metadata.name} {.spec.replicas}{\"\n\"}" |
  while read -r line; do echo "$EPOCHREALTIME $line"; done'

# What KEDA may read, as docs/keda.md prints it: a certificate, where it finds it, and its rights. And a token for the trigger by-token.
mkdir -p "$CLUSTER_DIR/printed"
(cd "$CLUSTER_DIR/printed" && eval "$(printed 'kubectl certificate approve' sh)") >"$CLUSTER_DIR/logs/printed.log" 2>&1
printed "kind: ClusterTriggerAuthentication #" yaml | kubectl apply -f - >/dev/null
kubectl -n keda create secret generic wva-token --from-literal token="$(kubectl -n keda create token keda-reader --duration 2h)" \
  --from-file ca="$certificates/wva-ca.crt" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: keda.sh/v1alpha1
kind: ClusterTriggerAuthentication
metadata: {name: wva-token}
spec:
  secretTargetRef: [{parameter: token, name: wva-token, key: token}, {parameter: ca, name: wva-token, key: ca}]
YAML

# Without KEDA: the plain HPA of llama reads the external metric, and another one a metric of the object.
{
  deployment by-object
  echo ---
  kubectl -n llm get hpa llama -o json | jq 'del(.metadata.uid, .metadata.resourceVersion, .metadata.annotations, .status) | .metadata.name = "by-object"
    | .spec.scaleTargetRef.name = "by-object" | .spec.metrics = [{type: "Object", object: {metric: {name: "wva_desired_replicas"},
      describedObject: {apiVersion: "llmd.ai/v1alpha1", kind: "VariantAutoscaling", name: "llama"}, target: {type: "AverageValue", averageValue: "1"}}}]'
} | kubectl apply -f - >/dev/null
pin 3
eventually 60 "the plain HPA and that by a metric of the object have the number" all_have 3 llama by-object
measure llama by-object
took llama "HPA by the external metric"
took by-object "HPA by a metric of the object"

# From the plain HPA to KEDA.
pin 3
eventually 60 "the number is 3 everywhere" all_have 3 llama by-object
since=$EPOCHREALTIME
keda_owns_external_metrics "${chart[@]}"
route_api_server_to "$wva_port" # of the custom metrics
eventually 30 "the plain HPA has no number" hpa_reports FailedGetExternalMetric wva_desired_replicas
throughout 10 "and keeps the replicas" only_had 3 llama "$since"
scaled_object llama external-push | kubectl apply -f - >/dev/null
eventually 30 "the ScaledObject takes over the HPA" keda_has_hpa
eventually 30 "which has a number again" scaling_active_is True
throughout 15 "from the plain HPA to KEDA: no other replicas were written" only_had 3 llama "$since"

# The other triggers.
{
  for name in by-query by-url by-token by-zeros; do deployment $name; echo ---; done
  scaled_object by-query prometheus
  scaled_object by-url metrics-api
  scaled_object by-token metrics-api "s/authMode: tls/authMode: bearer/; s/name: wva}/name: wva-token}/"
  scaled_object by-zeros prometheus "/ignoreNullValues/d"
} | kubectl apply -f - >/dev/null
eventually 60 "the triggers external-push, prometheus and metrics-api have the number" all_have 3 llama by-query by-url by-zeros by-object
measure llama by-query by-url by-object
took llama "KEDA, external-push" "poll 5 s"
took by-query "KEDA, prometheus" "poll 5 s, scrape ${SCRAPE_INTERVAL%s} s"
took by-url "KEDA, metrics-api" "poll 5 s"
took by-object "beside KEDA, HPA by a metric of the object"

# A token needs wva's CA among those that the operator trusts: since 2.18, KEDA takes a trigger's own CA only with a client certificate.
failure_of() { kubectl -n llm get events --field-selector "involvedObject.name=$1,reason=KEDAScalerFailed" -o yaml | grep -oF -m 1 "$2"; }
eventually 30 "metrics-api with a token and a CA: KEDA does not use the CA" failure_of by-token "certificate signed by unknown authority"
pin 3
eventually 60 "the number is 3 everywhere else" all_have 3 llama by-query by-url by-zeros by-object
since=$EPOCHREALTIME
stop keda-operator
mkdir -p "$certificates/trusted"
cp "$certificates/wva-ca.crt" "$certificates/trusted/"
start_operator --ca-dir "$certificates/trusted"
eventually 60 "the operator starts again and trusts wva's CA: the token is enough" all_have 3 by-token

# wva does not answer for a while.
stop wva-0
eventually 60 "wva is stopped: with the default of ignoreNullValues, KEDA takes the missing series for 0" all_have 1 by-zeros
throughout 30 "the others keep their replicas" all_have 3 llama by-query by-url by-token by-object
WVA_ARGS="--external-scaler-port $scaler_port" start_wva wva-0 "$wva_port"
eventually 60 "wva is back: KEDA reads the series again" all_have 3 by-zeros
for name in llama by-query by-url by-object; do assert_eq "replicas of $name that were written meanwhile" "$(only_had 3 $name "$since")" 3; done

# And back to the plain HPA. KEDA's goes with the ScaledObject; without waiting for that, a new one of the same name would go too.
since=$EPOCHREALTIME
kubectl -n llm delete scaledobject --all --cascade=foreground --timeout=60s >/dev/null
assert_eq "KEDA's HPAs are gone" "$(kubectl -n llm get hpa -o jsonpath='{.items[*].metadata.name}')" by-object
give_back_external_metrics "${chart[@]}"
sed -n '/^apiVersion: autoscaling/,$p' "$e2e/objects/llama.yaml" | kubectl apply -f - >/dev/null
eventually 30 "the plain HPA has the number" scaling_active_is True
throughout 15 "from KEDA to the plain HPA: no other replicas were written" only_had 3 llama "$since"
eventually 0 "nor for the HPA by a metric of the object" only_had 3 by-object "$since"
pin 4
eventually 30 "and the plain HPA follows" all_have 4 llama by-object

kubectl -n llm delete hpa by-object >/dev/null
kubectl -n llm delete deployment by-object by-query by-url by-token by-zeros >/dev/null
kubectl -n llm delete role,rolebinding keda-reads-wva >/dev/null
kubectl delete clusterrolebinding/keda-reads-wva csr/keda-reads-wva clustertriggerauthentication/wva clustertriggerauthentication/wva-token >/dev/null
kubectl -n keda delete secret wva-reader wva-token >/dev/null
kubectl -n llm patch va llama --type merge -p '{"spec":{"minReplicas":1,"maxReplicas":10}}' >/dev/null
for name in replicas keda-adapter keda-operator wva-0; do stop "$name"; done
mv "$CLUSTER_DIR/prometheus.yml.before" "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP
install_chart
baseline
