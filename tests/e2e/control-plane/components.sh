# shellcheck shell=bash
# The parts of a bed: for each, how it is started (spawn_PART) and how it shows that it works (await_PART). Sourced by bed.

# In the order they start; they stop in the reverse order. The API server goes before etcd, or it lingers on its port for a minute.
PARTS=(etcd kube-apiserver kube-controller-manager kube-scheduler kwok prometheus)

spawn_etcd() {
  spawn etcd "$BED_BIN/etcd" --name bed --data-dir "$BED/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls "http://127.0.0.1:$ETCD_PORT" --advertise-client-urls "http://127.0.0.1:$ETCD_PORT" \
    --listen-peer-urls "http://127.0.0.1:$ETCD_PEER_PORT" --initial-advertise-peer-urls "http://127.0.0.1:$ETCD_PEER_PORT" \
    --initial-cluster "bed=http://127.0.0.1:$ETCD_PEER_PORT"
}
await_etcd() { await_http etcd 30 "http://127.0.0.1:$ETCD_PORT/health"; }

spawn_kube-apiserver() {
  local pki=$BED/pki
  # endpoint-reconciler none: Endpoints refuse a loopback address. HPAScaleToZero is on by itself from 1.37.
  spawn kube-apiserver "$BED_BIN/kube-apiserver" \
    --bind-address 127.0.0.1 --secure-port "$API_PORT" --endpoint-reconciler-type none \
    --etcd-servers "http://127.0.0.1:$ETCD_PORT" --service-cluster-ip-range 10.96.0.0/16 \
    --authorization-mode Node,RBAC --allow-privileged --feature-gates HPAScaleToZero=true \
    --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" --client-ca-file "$pki/ca.crt" \
    --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file "$pki/service-accounts.key" --service-account-signing-key-file "$pki/service-accounts.key" \
    --requestheader-client-ca-file "$pki/front-proxy-ca.crt" --requestheader-allowed-names front-proxy-client \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- \
    --proxy-client-cert-file "$pki/front-proxy-client.crt" --proxy-client-key-file "$pki/front-proxy-client.key"
}
await_kube-apiserver() {
  await_http kube-apiserver 90 --cacert "$BED/pki/ca.crt" --cert "$BED/pki/admin.crt" --key "$BED/pki/admin.key" "$API_URL/readyz"
}

# Nodes are given longer than any test keeps the API server away: pods of a node that was lost for a moment are made NotReady, and the
# kubelet that would make them Ready again is not there.
spawn_kube-controller-manager() {
  spawn kube-controller-manager "$BED_BIN/kube-controller-manager" --kubeconfig "$BED/kube-controller-manager.kubeconfig" \
    --bind-address 127.0.0.1 --secure-port "$CONTROLLER_MANAGER_PORT" --cert-dir "$BED/pki/kube-controller-manager" --leader-elect=false \
    --use-service-account-credentials --service-account-private-key-file "$BED/pki/service-accounts.key" --root-ca-file "$BED/pki/ca.crt" \
    --node-monitor-grace-period 10m --feature-gates HPAScaleToZero=true --horizontal-pod-autoscaler-sync-period "$HPA_SYNC"
}
# --insecure: both make a certificate of their own at start; only health is asked.
await_kube-controller-manager() { await_http kube-controller-manager 60 --insecure "https://127.0.0.1:$CONTROLLER_MANAGER_PORT/healthz"; }

spawn_kube-scheduler() {
  spawn kube-scheduler "$BED_BIN/kube-scheduler" --kubeconfig "$BED/kube-scheduler.kubeconfig" \
    --bind-address 127.0.0.1 --secure-port "$SCHEDULER_PORT" --cert-dir "$BED/pki/kube-scheduler" --leader-elect=false
}
await_kube-scheduler() { await_http kube-scheduler 60 --insecure "https://127.0.0.1:$SCHEDULER_PORT/healthz"; }

spawn_kwok() {
  # Without the lease duration no node lease is renewed, and after 50 s every pod counts as not ready, for good.
  spawn kwok "$BED_BIN/kwok" --kubeconfig "$BED/kwok.kubeconfig" --config "$BED_BIN/kwok-stages.yaml" \
    --manage-all-nodes=true --node-lease-duration-seconds 40 --server-address "127.0.0.1:$KWOK_PORT"
}
await_kwok() { await_http kwok 30 "http://127.0.0.1:$KWOK_PORT/healthz"; }

spawn_prometheus() {
  spawn prometheus "$BED_BIN/prometheus" --config.file "$BED/prometheus.yml" --storage.tsdb.path "$BED/prometheus" \
    --storage.tsdb.retention.time 1d --web.listen-address "127.0.0.1:$PROMETHEUS_PORT" --log.level warn
}
await_prometheus() { await_http prometheus 30 "$PROMETHEUS_URL/-/ready"; }

# Prometheus finds model servers as it does in a cluster; only the network is bent, because pods of KWOK have none: one process
# (FLEET_ADDR) answers for all of them, each under a path of its own.
configure_prometheus() {
  cat >"$BED/prometheus.yml" <<YAML
global: {scrape_interval: $SCRAPE_INTERVAL, scrape_timeout: $SCRAPE_INTERVAL}
scrape_configs:
- job_name: model-servers
  kubernetes_sd_configs: [{role: pod, kubeconfig_file: $BED/prometheus.kubeconfig}]
  relabel_configs:
  - action: keep
    source_labels: [__meta_kubernetes_pod_label_llm_d_ai_model, __meta_kubernetes_pod_annotation_prometheus_io_scrape]
    regex: .+;.*|.*;true
  - {source_labels: [__address__], target_label: instance}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
  - {source_labels: [namespace, pod], separator: /, target_label: __metrics_path__, replacement: /pods/\$1/metrics}
  - {target_label: __address__, replacement: "$FLEET_ADDR"}
YAML
}

# Nodes exist only as objects. Capacity given here is kept, so the scheduler refuses the first pod that asks for a GPU too many.
create_nodes() {
  local i
  {
    node cpu-0 'cpu: "64", memory: 256Gi, pods: "1000"' ""
    for ((i = 0; i < GPU_NODES; i++)); do
      node "gpu-$i" "cpu: \"128\", memory: 1Ti, pods: \"250\", nvidia.com/gpu: \"$NODE_GPUS\"" \
        "nvidia.com/gpu.product: $GPU_PRODUCT, nvidia.com/gpu.memory: \"81559\", nvidia.com/gpu.count: \"$NODE_GPUS\""
    done
  } | kubectl create -f - >/dev/null
  kubectl wait --for=condition=Ready nodes --all --timeout=60s >/dev/null
}

# node NAME CAPACITY LABELS
node() {
  cat <<YAML
apiVersion: v1
kind: Node
metadata:
  name: $1
  labels: {kubernetes.io/hostname: $1, kubernetes.io/os: linux, kubernetes.io/arch: amd64, $3}
status:
  capacity: {$2}
  allocatable: {$2}
---
YAML
}

# Prometheus and the fleet read pods, as any monitoring does, and nothing else.
grant_readers() {
  kubectl create clusterrolebinding bed-readers --clusterrole=view --user=prometheus --user=fleet >/dev/null
}
