# shellcheck shell=bash
# (50) Pass-through: the real prometheus-adapter owns external metrics by an APIService of its Helm release, and an HPA follows one of its metrics.
# wva takes the APIService over and gives it back by one flag, as the chart's value does, and no read of a probe every 0.2 s fails. Meanwhile it
# answers what is its own, and passes the rest on with its service account's token. A fallback server that hangs or is gone costs only its own
# metrics: not those of variants, not discovery, and not the deletion of a namespace. An APIService whose server does not answer, or whose CA
# cert-manager injects, is not taken over, and a program that keeps writing it is given way. Then the real KEDA, whose ScaledObject is followed
# through wva, until all of the pass-through is switched off in one upgrade.

choose_port adapter_port
external=v1beta1.external.metrics.k8s.io
adapter_tls=$CLUSTER_DIR/adapter-tls series=$CLUSTER_DIR/series.yml rules=$CLUSTER_DIR/adapter-rules.yaml
mkdir -p "$adapter_tls"
listed() { kubectl get --raw "$external_metrics" | jq -c '[.resources[].name] | sort'; }
lists() { local names; names=$(listed) && echo "$names" && jq -e --arg name "$1" 'index($name)' <<<"$names" >/dev/null; }
points_to() { is "\"$(kubectl get apiservice "$external" -o jsonpath='{.spec.service.namespace}/{.spec.service.name}')\" == \"$1\""; }
# taken_over_is REASON: of the condition that wva writes
taken_over_is() {
  local actual
  actual=$(kubectl get apiservice "$external" -o jsonpath='{range .status.conditions[?(@.type=="TakenOver")]}{.status} {.reason}: {.message}{end}')
  echo "$actual"
  [[ $actual == *" $1: "* ]]
}
follower_is() { is "$(kubectl -n llm get deployment worker -o jsonpath='{.spec.replicas}') == $1"; }
# passed_on NAME: the answer to a read of this metric through the API server, as the administrator, whose errors are on one line
passed_on() { kubectl get --raw "$external_metrics/namespaces/llm/$1?labelSelector=${2:-}" 2>&1; }
fails_with() { local answer; answer=$(passed_on "$1" "${3:-}") || true; echo "$answer"; grep -qF "$2" <<<"$answer"; }
has_value() { local value; value=$(passed_on "$1" "${3:-}" | jq -r '.items[0].value') && echo "$value" && [ "$value" = "$2" ]; }

# The API server resolves Services of the type ExternalName; wva resolves them by a file of hosts.
hosts=$CLUSTER_DIR/fallback-hosts with_hosts=$CLUSTER_DIR/with-hosts
echo "127.0.0.1 localhost adapter.monitoring.svc keda-metrics.keda.svc wva.$release_namespace.svc" >"$hosts"
cat >"$with_hosts" <<SH
#!/bin/sh
exec unshare --map-root-user --mount sh -c 'mount --bind "\$0" /etc/hosts && exec "\$@"' "$hosts" "\$@"
SH
chmod +x "$with_hosts"

# ---- prometheus-adapter, which owns external metrics
cat >"$series" <<'YAML'
groups:
- name: series
  interval: 2s
  rules: [{record: queue_messages_ready, expr: vector(7), labels: {namespace: llm, queue: jobs}}]
YAML
sed -i "1i rule_files: [$series]" "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP
cat >"$rules" <<'YAML'
externalRules:
- {seriesQuery: queue_messages_ready, resources: {template: <<.Resource>>}, metricsQuery: "sum(<<.Series>>{<<.LabelMatchers>>}) by (queue)"}
YAML
openssl req -x509 -newkey rsa:2048 -nodes -keyout "$adapter_tls/ca.key" -out "$adapter_tls/ca.crt" -subj /CN=adapter-ca -days 1 2>/dev/null
openssl req -newkey rsa:2048 -nodes -keyout "$adapter_tls/tls.key" -out "$adapter_tls/tls.csr" -subj /CN=adapter 2>/dev/null
openssl x509 -req -in "$adapter_tls/tls.csr" -CA "$adapter_tls/ca.crt" -CAkey "$adapter_tls/ca.key" -CAcreateserial -days 1 -out "$adapter_tls/tls.crt" \
  -extfile <(echo 'subjectAltName=DNS:adapter.monitoring.svc') 2>/dev/null
. "$e2e/adapter.sh"
start_with_certificate() { start_adapter "$rules" --tls-cert-file "$adapter_tls/tls.crt" --tls-private-key-file "$adapter_tls/tls.key"; }
start_with_certificate
install_chart --set apiService.enabled=false
kubectl create namespace monitoring --dry-run=client -o yaml | kubectl apply -f - >/dev/null
adapter_chart=$CLUSTER_DIR/adapter-chart
mkdir -p "$adapter_chart/templates"
echo '{apiVersion: v2, name: adapter, version: 0.0.1}' >"$adapter_chart/Chart.yaml"
cat >"$adapter_chart/templates/api.yaml" <<YAML
apiVersion: v1
kind: Service
metadata: {name: adapter, namespace: monitoring}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: $external, labels: {app: adapter}}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: monitoring, name: adapter, port: $adapter_port}
YAML
helm upgrade --install adapter "$adapter_chart" -n monitoring >/dev/null
eventually 60 "prometheus-adapter owns external metrics" is_available
eventually 60 "and has a metric" has_value queue_messages_ready 7
kubectl -n llm create deployment worker --image=registry.k8s.io/pause --replicas=1 --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: worker, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: worker}
  minReplicas: 1
  maxReplicas: 9
  metrics:
  - type: External
    external: {metric: {name: queue_messages_ready, selector: {matchLabels: {queue: jobs}}}, target: {type: AverageValue, averageValue: "2"}}
YAML
eventually 60 "an HPA asks the adapter for two messages a replica, and 7 wait: 4 replicas" follower_is 4
kubectl get apiservice "$external" -o json | jq -S '{spec, annotations: .metadata.annotations, labels: .metadata.labels}' >"$CLUSTER_DIR/apiservice-before"

# ---- wva passes on, and takes over
ask() { ask_instance "$wva_port" "$external_metrics$1" --insecure -H 'X-Remote-Group: system:masters' "${@:2}"; }
pass_on=(--set fallback.apiService=monitoring/adapter:"$adapter_port" --set fallback.ca.configMap=adapter-ca --set apiService.enabled=false)
pass_on_args="--fallback-apiservice monitoring/adapter:$adapter_port --fallback-ca $adapter_tls/ca.crt --fallback-token-path $CLUSTER_DIR/wva-token --fallback-take-over-port $wva_port"
install_chart "${pass_on[@]}"
kubectl create token wva -n "$release_namespace" --duration 2h >"$CLUSTER_DIR/wva-token"
stop wva-0
WVA_UNDER=$with_hosts WVA_ARGS=$pass_on_args start_wva wva-0 "$wva_port"
own_list() { ask "" | jq -c '[.resources[].name] | sort' | grep -F queue_messages_ready; }
eventually 30 "wva lists the adapter's metric beside its own" own_list
assert_eq "a read at wva of the adapter's metric" "$(ask /namespaces/llm/queue_messages_ready | jq -r '.items[0].value')" 7
assert_eq "the APIService is left alone without the flag" "$(kubectl get apiservice "$external" -o jsonpath='{.spec.service.name}')" adapter

# The probe: a read through the API server of the adapter's metric every 0.2 s, and what was not 200.
probe=$CLUSTER_DIR/probe
cat >"$probe" <<SH
#!/bin/sh
while :; do
  curl --silent --max-time 5 --cacert "$CLUSTER_DIR/pki/ca.crt" --cert "$CLUSTER_DIR/pki/admin.crt" --key "$CLUSTER_DIR/pki/admin.key" \
    --output "$probe.body" --write-out '%{http_code}\n' "$API_URL$external_metrics/namespaces/llm/queue_messages_ready?labelSelector=queue%3Djobs"
  sleep 0.2
done
SH
chmod +x "$probe"
begin_probe() { rm -f "$CLUSTER_DIR/logs/probe.log" && spawn probe "$probe"; }
# end_probe WHAT: it has read some hundred times, and each answer was the number
end_probe() {
  local failures reads
  stop probe
  reads=$(grep -c . "$CLUSTER_DIR/logs/probe.log") failures=$(grep -vc '^200$' "$CLUSTER_DIR/logs/probe.log" || true)
  assert_eq "$1: of $reads reads every 0.2 s failed" "$failures" 0
}

# ---- what is not taken over
install_chart "${pass_on[@]}" --set fallback.takeOver=true
kubectl annotate apiservice "$external" cert-manager.io/inject-ca-from=monitoring/ca >/dev/null
stop wva-0
signal_to adapter STOP
WVA_UNDER=$with_hosts WVA_ARGS="$pass_on_args --fallback-take-over" start_wva wva-0 "$wva_port"
eventually 60 "an APIService whose CA cert-manager injects is refused" taken_over_is CABundleInjected
kubectl annotate apiservice "$external" cert-manager.io/inject-ca-from- >/dev/null
eventually 60 "so is one whose server does not answer" taken_over_is FallbackUnavailable
throughout 20 "it is left alone" points_to monitoring/adapter
stop wva-0
signal_to adapter CONT
WVA_UNDER=$with_hosts WVA_ARGS=$pass_on_args start_wva wva-0 "$wva_port"
eventually 60 "the server answers again" has_value queue_messages_ready 7

choose_port second_port
begin_probe
WVA_UNDER=$with_hosts WVA_ARGS="$pass_on_args --fallback-take-over" start_wva wva-1 "$second_port"
stop wva-0
WVA_UNDER=$with_hosts WVA_ARGS="$pass_on_args --fallback-take-over" start_wva wva-0 "$wva_port"
eventually 90 "wva takes the APIService over" points_to "$release_namespace/wva"
stop wva-1
sleep 10
end_probe "taking over"
eventually 30 "it is available" is_available
eventually 30 "the adapter's metric is listed" lists queue_messages_ready
eventually 30 "and so is wva's" lists wva_desired_replicas
eventually 30 "wva answers with the number of a variant" value_is '>=' 1
assert_eq "the object stays the adapter's release's" \
  "$(kubectl get apiservice "$external" -o jsonpath='{.metadata.annotations.meta\.helm\.sh/release-name}')" adapter
sed -i 's/expr: vector(7)/expr: vector(11)/' "$series"
signal_to prometheus HUP
eventually 60 "the HPA follows the adapter's metric through wva: 6 replicas" follower_is 6
eventually 10 "an error of the adapter names it" fails_with missing "Service monitoring/adapter"

# ---- the fallback server hangs, and is gone
signal_to adapter STOP
eventually 60 "the adapter hangs: the error says so" fails_with queue_messages_ready "did not answer within 5 s"
slowest=$(for _ in $(seq 50); do
  curl --silent --output /dev/null --write-out '%{time_total}\n' --insecure --cert "$CLUSTER_DIR/pki/front-proxy-client.crt" --key "$CLUSTER_DIR/pki/front-proxy-client.key" \
    -H 'X-Remote-User: probe' -H 'X-Remote-Group: system:masters' "https://127.0.0.1:$wva_port$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3Dllama"
done | sort -n | tail -1)
assert_eq "the slowest of 50 reads of a variant meanwhile ($slowest s) takes less than 1 s" "$(calculate "$slowest < 1")" 1
throughout 10 "the HPA keeps its replicas" follower_is 6
signal_to adapter CONT
eventually 60 "it goes on: the metric is read again" has_value queue_messages_ready 11
stop adapter
eventually 60 "the adapter is gone: the error names it" fails_with queue_messages_ready "Service monitoring/adapter, to which this server passes on what is not its own"
eventually 10 "discovery still lists its metric" lists queue_messages_ready
eventually 10 "and wva answers with the number of a variant" value_is '>=' 1
eventually 60 "a namespace can be deleted" namespace_is_deleted
start_with_certificate
eventually 60 "it is back: the metric is read again" has_value queue_messages_ready 11

# ---- without the right to read there
kubectl delete clusterrolebinding "$release_namespace:wva-fallback-reader" >/dev/null
eventually 30 "without its right, the error says which" fails_with queue_messages_ready "may not read there (403): grant it the verbs get and list"
install_chart "${pass_on[@]}" --set fallback.takeOver=true
eventually 60 "with it, the metric is read again" has_value queue_messages_ready 11

# ---- a program that keeps writing it, as one with a CA of its own does
foreign=$CLUSTER_DIR/foreign-writer
cat >"$foreign" <<SH
#!/bin/sh
while :; do
  [ "\$(kubectl get apiservice $external -o jsonpath='{.spec.service.name}')" != wva ] ||
    kubectl patch apiservice $external --type merge -p '{"spec": {"caBundle": "$(base64 -w0 <"$adapter_tls/ca.crt")"}}'
  sleep 1
done
SH
chmod +x "$foreign"
spawn foreign-writer "$foreign"
eventually 60 "a program that keeps writing its own CA is given way" points_to monitoring/adapter
eventually 10 "the condition says so" taken_over_is TakeOverGivenUp
throughout 20 "for good" points_to monitoring/adapter
assert_eq "after as few writes" "$(grep -c 'patched$' "$CLUSTER_DIR/logs/foreign-writer.log")" 3
stop foreign-writer
kubectl annotate apiservice "$external" wva.llmd.ai/take-over-given-up- >/dev/null
eventually 30 "until the annotation is removed" points_to "$release_namespace/wva"
eventually 30 "the adapter's metric is read again" has_value queue_messages_ready 11

# What a tool applies that has an unverified server in its manifest is refused, so that nothing is seen of it here.
unverified=$(kubectl patch apiservice "$external" --type merge -p '{"spec": {"insecureSkipTLSVerify": true}}' 2>&1) && failed "an unverified server beside our CA was accepted"
passed "the API server refuses to leave it unverified beside our CA: $(grep -F "may not be true if caBundle is present" <<<"$unverified")"

# ---- before an uninstall: the command of the chart's pre-delete hook, with the rights of the chart
assert_eq "the chart has a hook that gives it back" "$(helm get hooks wva -n "$release_namespace" | grep -c 'args: \[give-back, --service=wva-system/wva\]')" 1
stop wva-0
eventually 10 "the hook gives it back" "$WVA" give-back --kubeconfig "$CLUSTER_DIR/wva-0.kubeconfig" --service="$release_namespace/wva"
eventually 10 "to the adapter" points_to monitoring/adapter
eventually 60 "whose metric is read" has_value queue_messages_ready 11
WVA_UNDER=$with_hosts WVA_ARGS="$pass_on_args --fallback-take-over" start_wva wva-0 "$wva_port"
eventually 90 "the next release takes it over" points_to "$release_namespace/wva"
eventually 30 "it is available" is_available

# ---- given back
# Before the probe: for a moment this leaves the Service without the port of the processes here.
install_chart "${pass_on[@]}" --set fallback.takeOver=false
begin_probe
WVA_UNDER=$with_hosts WVA_ARGS=$pass_on_args start_wva wva-1 "$second_port"
stop wva-0
eventually 90 "the other instance gives it back" points_to monitoring/adapter
sleep 10
end_probe "giving back"
kubectl get apiservice "$external" -o json | jq -S '{spec, annotations: .metadata.annotations, labels: .metadata.labels}' >"$CLUSTER_DIR/apiservice-after"
jq -S --arg ca "$(base64 -w0 <"$adapter_tls/ca.crt")" '.spec |= (.caBundle = $ca | del(.insecureSkipTLSVerify))' "$CLUSTER_DIR/apiservice-before" >"$CLUSTER_DIR/apiservice-expected"
assert_eq "what is given back is what was taken, with the CA that was written meanwhile" "$(diff "$CLUSTER_DIR/apiservice-expected" "$CLUSTER_DIR/apiservice-after")" ""
stop wva-1
helm uninstall adapter -n monitoring >/dev/null
stop adapter
kubectl -n llm delete hpa worker >/dev/null

# ---- the real KEDA
. "$e2e/keda.sh"
start_keda
keda_owns_external_metrics --set fallback.apiService=keda/keda-metrics:"$adapter_port" --set fallback.insecureSkipVerify=true --set fallback.takeOver=true
kubectl apply -f - >/dev/null <<YAML
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: worker, namespace: llm}
spec:
  scaleTargetRef: {name: worker}
  minReplicaCount: 1
  maxReplicaCount: 9
  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 0}}}}
  triggers:
  - type: prometheus
    metadata: {serverAddress: "$PROMETHEUS_URL", query: 'max(queue_messages_ready{queue="jobs"})', threshold: "3"}
YAML
eventually 60 "KEDA's HPA asks KEDA for three messages a replica, and 11 wait: 4 replicas" follower_is 4
keda_args="--fallback-apiservice keda/keda-metrics:$adapter_port --fallback-insecure-skip-tls-verify --fallback-token-path $CLUSTER_DIR/wva-token \
--fallback-take-over-port $wva_port"
kubectl create token wva -n "$release_namespace" --duration 2h >"$CLUSTER_DIR/wva-token"
stop wva-0
mark_log wva-0
WVA_UNDER=$with_hosts WVA_ARGS="$keda_args --fallback-take-over" start_wva wva-0 "$wva_port"
insecure_is_logged() { log_since wva-0 | grep -F "the certificate of the fallback server is not verified"; }
eventually 10 "the log warns of a certificate that is not verified" insecure_is_logged
eventually 90 "wva takes KEDA's APIService over" points_to "$release_namespace/wva"
eventually 30 "wva answers with the number of a variant" value_is '>=' 1
sed -i 's/expr: vector(11)/expr: vector(17)/' "$series"
signal_to prometheus HUP
eventually 60 "KEDA's HPA follows its metric through wva: 6 replicas" follower_is 6
assert_eq "and reads it there" "$(kubectl -n llm get hpa keda-hpa-worker -o jsonpath='{.status.conditions[?(@.type=="ScalingActive")].status}')" True
eventually 10 "an error of KEDA names it" fails_with s0-prometheus "Service keda/keda-metrics"
# All at once, which takes away the rights and flags of the pass-through, and not the right to give back.
install_chart --set apiService.enabled=false
assert_eq "while it is taken over, the chart keeps its hook" "$(helm get hooks wva -n "$release_namespace" | grep -c 'args: \[give-back, --service=wva-system/wva\]')" 1
eventually 10 "the HPA may read here until it is given back" kubectl auth can-i get wva_desired_replicas.external.metrics.k8s.io -n llm \
  --as system:serviceaccount:kube-system:horizontal-pod-autoscaler
stop wva-0
start_wva wva-0 "$wva_port"
eventually 90 "switched off in one upgrade, KEDA gets it back" points_to keda/keda-metrics
eventually 30 "and answers" is_available
eventually 30 "KEDA's HPA reads there" has_value s0-prometheus 17 scaledobject.keda.sh%2Fname%3Dworker
assert_eq "as it was" "$(kubectl get apiservice "$external" -o jsonpath='{.spec.insecureSkipTLSVerify} {.spec.service.port} {.metadata.annotations}')" "true $adapter_port "

kubectl -n llm delete scaledobject,deployment worker >/dev/null
stop keda-adapter
stop keda-operator
sed -i 1d "$CLUSTER_DIR/prometheus.yml"
signal_to prometheus HUP
stop wva-0
give_back_external_metrics
