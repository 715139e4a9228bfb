# shellcheck shell=bash
# (35) What starts a controller of WVA starts this program: arguments, environment and config.yaml of its chart 0.5 as rendered, and the main ConfigMap of
# earlier releases. Its saturation ConfigMap has the name that Helm gave it. An object of v0.4 decides, and so it does after its Deployment was deleted.
#
# Other than in a pod: the port of --metrics-bind-address, since 8443 may be taken, paths under $CLUSTER_DIR, and the namespace. The kubelet's
# variables and the token of the pod are set here, and --watch-namespace is left out, as where the chart's namespaceScoped is false. The rights
# are those of this chart, with the value of configMaps that `wva migrate` writes for that name.

chart=workload-variant-autoscaler
earlier=$CLUSTER_DIR/earlier
logged() { log_since wva-0 | grep -F -- "$1" | tail -n 1 | cut -c 1-240 | grep .; }
# number_of VARIANT: the number; number_is VARIANT NUMBER
number_of() {
  local actual
  actual=$(kubectl get --raw "$external_metrics/namespaces/llm/wva_desired_replicas?labelSelector=variant_name%3D$1" 2>&1) || { echo "$actual"; return 1; }
  jq -r '[.items[].value] | join(" ")' <<<"$actual" | grep .
}
number_is() { local actual; actual=$(number_of "$1") || { echo "$actual"; return 1; }; echo "$actual"; [ "$actual" = "$2" ]; }
told() { # REASON TEXT: the object has an event with this reason, whose note contains TEXT
  local notes
  notes=$(kubectl -n llm get events --field-selector "involvedObject.name=earlier,reason=$1" -o jsonpath='{.items[*].message}')
  echo "$notes"
  [[ $notes == *"$2"* ]]
}
target_is() { # STATUS REASON
  local actual
  actual=$(kubectl -n llm get va earlier -o jsonpath='{range .status.conditions[?(@.type=="TargetResolved")]}{.status} {.reason}{end}')
  echo "$actual"
  [ "$actual" = "$1 $2" ]
}
# rendered KIND FILTER: what jq finds in the objects of this kind that the chart renders
rendered() {
  kubectl create --dry-run=client --validate=false -o json -f "$root/tests/it/migrate/chart-0.5.yaml" | jq -r --arg kind "$1" "(if .kind == \"List\" then .items[] else . end) | select(.kind == \$kind) | $2"
}
# start_earlier VARIABLE=VALUE... -- ARGUMENT...: the program as the process of a pod whose command is /manager
start_earlier() {
  local variables=()
  while [ "$1" != -- ]; do variables+=("$1") && shift; done
  kubeconfig wva-0 "{token: $(kubectl create token wva -n "$release_namespace" --duration 2h)}"
  mark_log wva-0
  spawn wva-0 env KUBECONFIG="$CLUSTER_DIR/wva-0.kubeconfig" POD_NAME=wva-0 POD_NAMESPACE="$release_namespace" "${variables[@]}" \
    "$earlier/manager" "${@:2}"
  await_http wva-0 30 --insecure "https://127.0.0.1:$wva_port/readyz"
}

mkdir -p "$earlier"
ln -sf "$(realpath "$WVA")" "$earlier/manager"
kubectl -n "$release_namespace" create token wva >"$earlier/token"
rendered ConfigMap 'select(.metadata.name | endswith("variantautoscaling-config")) | .data["config.yaml"]' |
  sed -e "s|^PROMETHEUS_BASE_URL:.*|PROMETHEUS_BASE_URL: \"$PROMETHEUS_URL\"|; s|/etc/ssl/certs/prometheus-ca.crt|$CLUSTER_DIR/pki/ca.crt|" >"$earlier/config.yaml"
mapfile -t arguments < <(rendered Deployment '.spec.template.spec.containers[0].args[]' |
  sed -e '/^--watch-namespace=/d' -e "s|:8443|:$wva_port|; s|/etc/wva|$earlier|")
mapfile -t environment < <(rendered Deployment '.spec.template.spec.containers[0].env[] | select(.value) | "\(.name)=\(.value)"' |
  sed "s|=/var/run/.*|=$earlier/token|")
assert_eq "arguments of the chart" "${#arguments[@]}" 5
analyzer_is default
kubectl -n "$release_namespace" create configmap "$chart-wva-saturation-scaling-config" --from-literal 'default=kvCacheThreshold: 0.81' >/dev/null
kubectl -n "$release_namespace" create configmap service-classes-config \
  --from-literal $'premium.yaml=name: Premium\npriority: 1\ndata:\n- {model: earlier, slo-tpot: 24, slo-ttft: 500}' >/dev/null
kubectl apply -f "$e2e/objects/earlier.yaml" >/dev/null

stop wva-0
install_chart --set "configMaps.saturation=$chart-wva-saturation-scaling-config"
route_api_server_to "$wva_port"
start_earlier "${environment[@]}" -- "${arguments[@]}"
eventually 30 "WVA's arguments and config.yaml start it: its numbers are read" number_of llama
assert_eq "settings without effect that the log names more than once" \
  "$(log_since wva-0 | grep 'this setting has no effect' | grep -o ' name="[^"]*"' | sort | uniq -d)" ""
eventually 0 "one of them" logged 'name="--health-probe-bind-address"'
eventually 20 "the saturation ConfigMap that a variable names by its Helm name is in force" logged "global.default.saturation.kvCacheThreshold: 0.8 → 0.81"

eventually 30 "an object of v0.4 without scaleTargetRef has a number" number_is earlier 1
eventually 20 "of the Deployment of its name" told TargetByName "the Deployment of this object's name is scaled"
eventually 20 "its profile is kept, without effect" told FieldsWithoutEffect "spec.modelProfile"
eventually 20 "its maximum of 2 counts, and its owner is told where it may come from" told MaximumMayBeDefault "which the definition of WVA v0.6 to v0.8 writes"
eventually 20 "the objectives of its service class are read, and said to be without effect on this analyzer" told FieldsWithoutEffect "latency objectives have no effect"
model=earlier set_load "$(calculate "3.3 * $pod_rps")"
eventually 90 "load above the capacity of 3 pods: the number is the maximum" number_is earlier 2

kubectl -n llm delete deployment earlier >/dev/null
eventually 20 "its Deployment is deleted: the status says so" target_is False TargetNotFound
kubectl apply -f "$e2e/objects/earlier.yaml" >/dev/null
eventually 20 "it is created again: the status says so" target_is True TargetFound
eventually 40 "and the number is back" number_is earlier 2

# Releases up to 0.5: the settings are in a ConfigMap that a variable names, and no variable names the saturation ConfigMap.
stop wva-0
install_chart
route_api_server_to "$wva_port"
kubectl -n "$release_namespace" create configmap "$chart-variantautoscaling-config" \
  --from-literal PROMETHEUS_BASE_URL="$PROMETHEUS_URL" --from-literal GLOBAL_OPT_INTERVAL=60s >/dev/null
start_earlier CONFIG_MAP_NAME="$chart-variantautoscaling-config" -- -leader-elect -v=2 --metrics-bind-address=":$wva_port" --health-probe-bind-address=:8081
eventually 10 "the main ConfigMap says where Prometheus is" logged "settings are read from the main ConfigMap"
eventually 10 "and that its metrics come from there" logged "metrics come from Prometheus"
eventually 30 "a number is read" number_is earlier 2
eventually 20 "the saturation ConfigMap is found by the end of its name" logged "ConfigMap $release_namespace/$chart-wva-saturation-scaling-config: it decides about"

model=earlier set_load 0
stop wva-0 # the next case starts it as usual
kubectl delete -f "$e2e/objects/earlier.yaml" >/dev/null
kubectl -n "$release_namespace" delete configmap "$chart-wva-saturation-scaling-config" "$chart-variantautoscaling-config" service-classes-config >/dev/null
