# shellcheck shell=bash
# The parts of a test cluster: each has a function that starts it (spawn_PART) and one that waits until it works (await_PART). Sourced by cluster.

# In the order of their start; they stop in reverse order. The API server stops before etcd, otherwise it stays on its port for a minute.
PARTS=(etcd kube-apiserver kube-controller-manager kube-scheduler kwok prometheus)

spawn_etcd() {
  spawn etcd "$CLUSTER_BIN/etcd" --name test --data-dir "$CLUSTER_DIR/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls "http://127.0.0.1:$ETCD_PORT" --advertise-client-urls "http://127.0.0.1:$ETCD_PORT" \
    --listen-peer-urls "http://127.0.0.1:$ETCD_PEER_PORT" --initial-advertise-peer-urls "http://127.0.0.1:$ETCD_PEER_PORT" \
    --initial-cluster "test=http://127.0.0.1:$ETCD_PEER_PORT"
}
await_etcd() { await_http etcd 30 "http://127.0.0.1:$ETCD_PORT/health"; }

spawn_kube-apiserver() {
  local pki=$CLUSTER_DIR/pki
  # endpoint-reconciler none: Endpoints reject loopback addresses. HPAScaleToZero is on by default from 1.37.
  spawn kube-apiserver "$CLUSTER_BIN/kube-apiserver" \
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
  await_http kube-apiserver 90 --cacert "$CLUSTER_DIR/pki/ca.crt" --cert "$CLUSTER_DIR/pki/admin.crt" --key "$CLUSTER_DIR/pki/admin.key" "$API_URL/readyz"
}

# The grace period of nodes is longer than any test's outage of the API server. Pods of a lost node become NotReady, and there is no
# kubelet that would make them Ready again.
spawn_kube-controller-manager() {
  spawn kube-controller-manager "$CLUSTER_BIN/kube-controller-manager" --kubeconfig "$CLUSTER_DIR/kube-controller-manager.kubeconfig" \
    --bind-address 127.0.0.1 --secure-port "$CONTROLLER_MANAGER_PORT" --cert-dir "$CLUSTER_DIR/pki/kube-controller-manager" --leader-elect=false \
    --use-service-account-credentials --service-account-private-key-file "$CLUSTER_DIR/pki/service-accounts.key" --root-ca-file "$CLUSTER_DIR/pki/ca.crt" \
    --cluster-signing-cert-file "$CLUSTER_DIR/pki/ca.crt" --cluster-signing-key-file "$CLUSTER_DIR/pki/ca.key" \
    --node-monitor-grace-period 10m --feature-gates HPAScaleToZero=true --horizontal-pod-autoscaler-sync-period "$HPA_SYNC"
}
# --insecure: both create their own certificate at start, and only their health is read.
await_kube-controller-manager() { await_http kube-controller-manager 60 --insecure "https://127.0.0.1:$CONTROLLER_MANAGER_PORT/healthz"; }

spawn_kube-scheduler() {
  spawn kube-scheduler "$CLUSTER_BIN/kube-scheduler" --kubeconfig "$CLUSTER_DIR/kube-scheduler.kubeconfig" \
    --bind-address 127.0.0.1 --secure-port "$SCHEDULER_PORT" --cert-dir "$CLUSTER_DIR/pki/kube-scheduler" --leader-elect=false
}
await_kube-scheduler() { await_http kube-scheduler 60 --insecure "https://127.0.0.1:$SCHEDULER_PORT/healthz"; }

spawn_kwok() {
  # Without the lease duration no node lease is renewed, and after 50 s every pod is not Ready for good.
  spawn kwok "$CLUSTER_BIN/kwok" --kubeconfig "$CLUSTER_DIR/kwok.kubeconfig" --config "$CLUSTER_BIN/kwok-stages.yaml" \
    --manage-all-nodes=true --node-lease-duration-seconds 40 --server-address "127.0.0.1:$KWOK_PORT"
}
await_kwok() { await_http kwok 30 "http://127.0.0.1:$KWOK_PORT/healthz"; }

spawn_prometheus() {
  spawn prometheus "$CLUSTER_BIN/prometheus" --config.file "$CLUSTER_DIR/prometheus.yml" --storage.tsdb.path "$CLUSTER_DIR/prometheus" \
    --storage.tsdb.retention.time 1d --web.listen-address "127.0.0.1:$PROMETHEUS_PORT" --web.enable-otlp-receiver --log.level warn
}
await_prometheus() { await_http prometheus 30 "$PROMETHEUS_URL/-/ready"; }

# Prometheus discovers model servers as in a cluster. KWOK's pods have no network, so relabelling redirects all scrapes to one process
# (FLEET_ADDR) with a path per pod.
configure_prometheus() {
  cat >"$CLUSTER_DIR/prometheus.yml" <<YAML
global: {scrape_interval: $SCRAPE_INTERVAL, scrape_timeout: $SCRAPE_INTERVAL}
scrape_configs:
- job_name: model-servers
  kubernetes_sd_configs: [{role: pod, kubeconfig_file: $CLUSTER_DIR/prometheus.kubeconfig}]
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

# Nodes exist only as objects. Their capacity is kept, so the scheduler rejects pods that need more GPUs.
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

# Prometheus and the fleet may view objects, as any monitoring does, and nothing else.
grant_readers() {
  kubectl create clusterrolebinding test-readers --clusterrole=view --user=prometheus --user=fleet >/dev/null
}
