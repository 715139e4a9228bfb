# shellcheck shell=bash
# Functions that change the test cluster: the fleet and its load, the chart, instances of wva, the load balancer. Sourced by run and figures, after lib.sh.

# shellcheck source-path=SCRIPTDIR
. "$e2e/faults.sh"

# ---- the fleet: one process that simulates the model server of every Ready pod

start_fleet() {
  spawn fleet "$FLEET" --kubeconfig "$CLUSTER_DIR/fleet.kubeconfig" --listen "$FLEET_ADDR" --seed 1 "$@"
  await_http fleet 30 "http://$FLEET_ADDR/stats"
}

set_load() { curl --fail --silent --show-error --output /dev/null -X POST "http://$FLEET_ADDR/load?model=$model&rps=$1"; }
reset_stats() { curl --fail --silent --show-error --output /dev/null -X POST "http://$FLEET_ADDR/stats/reset"; }

# stat KEY: a statistic of the running model
stat() { curl --fail --silent --show-error "http://$FLEET_ADDR/stats" | sed -n "s/.*\"$1\": *\([-0-9.e]*\).*/\1/p"; }

# ---- the chart

# install_chart [HELM_ARGUMENT...]: installs the chart as a user would. Pods run nothing here, so the Service is then pointed at processes on
# loopback.
# shellcheck disable=SC2120 # cases pass some
install_chart() {
  helm upgrade --install wva "$root/charts/wva" -n "$release_namespace" --create-namespace --force-conflicts --reset-values "$@" >/dev/null || return
  kubectl -n "$release_namespace" patch service wva --type merge -p '{"spec":{"type":"ExternalName","externalName":"localhost"}}' >/dev/null
}

# route_api_server_to PORT: the API server sends requests for every APIService of the chart to this port.
route_api_server_to() {
  local services
  services=$(kubectl get apiservice -l app.kubernetes.io/instance=wva -o name) || return
  # shellcheck disable=SC2086 # one word a name
  kubectl patch $services --type merge -p "{\"spec\":{\"service\":{\"port\":$1}}}" >/dev/null
}

available() { kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='Available={.status.conditions[?(@.type=="Available")].status}'; }
custom_available() {
  local actual
  actual=$(kubectl get apiservice v1beta1.custom.metrics.k8s.io v1beta2.custom.metrics.k8s.io \
    -o jsonpath='{range .items[*]}Available={.status.conditions[?(@.type=="Available")].status} {end}')
  echo "$actual"
  [ "$actual" = "Available=True Available=True " ]
}
is_available() { local actual; actual=$(available) && echo "$actual" && [ "$actual" = Available=True ]; }

# configure NAMESPACE TEXT [KEY=TEXT...]: writes the saturation ConfigMap with the entry `default` and these entries only.
configure() {
  local entries=() entry
  for entry in "default=$2" "${@:3}"; do entries+=(--from-literal "$entry"); done
  kubectl create configmap wva-saturation-scaling-config -n "$1" "${entries[@]}" --dry-run=client -o yaml |
    kubectl apply --server-side --force-conflicts -f - >/dev/null
}

# analyzer_is NAME: selects the analyzer for all models. `default` removes the ConfigMap, so that the program's default decides.
analyzer_is() {
  if [ "$1" = default ]; then
    kubectl -n "$release_namespace" delete configmap wva-saturation-scaling-config --ignore-not-found >/dev/null
  else
    configure "$release_namespace" "analyzerName: $1"
  fi
}

# ---- instances of wva, with the rights that the chart grants, never as admin

# start_wva NAME PORT: NAME is the identity that its pod would have. Optional variables: MAX_STALE (60s); WVA_ARGS, further arguments of
# `wva serve`; WVA, another program; WVA_API_URL and WVA_PROMETHEUS_URL, other addresses; WVA_UNDER, a command to run it under; WVA_ADDRESS, where
# it listens; TOKEN_DURATION (2h), the lifetime of its token.
start_wva() {
  local name=$1 port=$2 account arguments under
  read -ra arguments <<<"${WVA_ARGS:-}"
  read -ra under <<<"${WVA_UNDER:-}"
  account=$(kubectl -n "$release_namespace" get deployment "${WVA_RELEASE:-wva}" -o jsonpath='{.spec.template.spec.serviceAccountName}') || return
  API_URL=${WVA_API_URL:-$API_URL} kubeconfig "$name" "{token: $(kubectl create token "$account" -n "$release_namespace" --duration "${TOKEN_DURATION:-2h}")}"
  spawn "$name" env PROMETHEUS_BASE_URL="${WVA_PROMETHEUS_URL:-$PROMETHEUS_URL}" POD_NAMESPACE="$release_namespace" POD_NAME="$name" \
    MIMALLOC_PURGE_DELAY=0 "${under[@]}" "$WVA" serve --kubeconfig "$CLUSTER_DIR/$name.kubeconfig" --bind-address "${WVA_ADDRESS:-127.0.0.1}" \
    --secure-port "$port" --max-stale "${MAX_STALE:-60s}" "${arguments[@]}"
  await_http "$name" 30 --insecure "https://${WVA_HOST:-127.0.0.1}:$port/readyz"
}

# ---- a TCP load balancer with a health check, in place of a ClusterIP Service

# on_marked_down: HAProxy's action for open connections to an instance that is not Ready (default: they are cut).
start_balancer() {
  local listen=$1 port
  shift
  {
    cat <<CONFIG
defaults
  mode tcp
  timeout connect 1s
  timeout client 1h
  timeout server 1h
frontend wva
  bind 127.0.0.1:$listen
  default_backend instances
backend instances
  option httpchk GET /readyz
CONFIG
    for port in "$@"; do
      echo "  server port-$port 127.0.0.1:$port check check-ssl verify none inter 500ms fall 2 rise 1 ${on_marked_down-on-marked-down shutdown-sessions}"
    done
  } >"$CLUSTER_DIR/haproxy.cfg"
  spawn haproxy "$(PATH=$PATH:/usr/sbin command -v haproxy)" -db -f "$CLUSTER_DIR/haproxy.cfg"
}

# The initial state of every case, whatever the previous case left: API server and Prometheus run, and the API server uses wva-0.
baseline() {
  local extra
  "$e2e/cluster" start "$CLUSTER_DIR" kube-apiserver prometheus >/dev/null || return
  for extra in haproxy wva-1 wva-2 wva-3; do stop "$extra"; done
  end_faults
  alive wva-0 || start_wva wva-0 "$wva_port" || return
  route_api_server_to "$wva_port"
  # V1 decides, because its numbers follow at once from the metrics. A case about another analyzer names it.
  analyzer_is saturation-percent
}

# set_hpa_sync DURATION: restarts the HPA controller with this sync period
set_hpa_sync() {
  sed -i "s/^HPA_SYNC=.*/HPA_SYNC=$1/" "$CLUSTER_DIR/env"
  "$e2e/cluster" stop "$CLUSTER_DIR" kube-controller-manager
  "$e2e/cluster" start "$CLUSTER_DIR" kube-controller-manager >/dev/null
}

# ---- set-up from scratch

# Builds the tools, wva as shipped, and the fleet (unoptimised: in CI, the examples have been built before).
build() {
  "$e2e/build-tools" kubernetes etcd kwok prometheus helm >/dev/null || return
  echo "building wva as shipped (or using WVA), the fleet and the proxy"
  [ -n "${WVA:-}" ] || WVA=$(nice -n 5 "$root/.ci/image" --build) || return
  (cd "$root" && nice -n 5 cargo build --workspace --locked --example fleet --example proxy --example history) || return
  FLEET=${CARGO_TARGET_DIR:-$root/target}/debug/examples/fleet
  PROXY=${FLEET%/*}/proxy
  HISTORY=${FLEET%/*}/history
}

# set_up [FLEET_ARGUMENT...]: creates a test cluster in $CLUSTER_DIR with the chart, the model, the fleet and one wva. Writes $CLUSTER_DIR/facts for the cases.
set_up() {
  "$e2e/cluster" up "$CLUSTER_DIR"
  # shellcheck source=/dev/null
  . "$CLUSTER_DIR/env"
  local name
  for name in wva_port second_port balancer_port; do
    choose_port "$name"
    echo "$name=${!name}" >>"$CLUSTER_DIR/facts"
  done
  install_chart
  kubectl apply -f "$e2e/objects/llama.yaml" >/dev/null
  start_fleet "$@"
  baseline
  eventually 60 "chart installed, wva runs with the chart's rights: the APIService is available" is_available
  eventually 30 "the fleet simulates the pods" fleet_has_pods
  # Capacity of one pod in requests/s. Measured now, with one pod, because later some pods may be draining.
  echo "pod_rps=$(calculate "$(stat capacity_rps) / $(stat ready)")" >>"$CLUSTER_DIR/facts"
}
fleet_has_pods() { is "$(stat ready) >= 1"; }
