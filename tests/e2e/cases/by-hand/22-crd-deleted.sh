# shellcheck shell=bash
# (22) The CRD of VariantAutoscalings is deleted while an HPA reads, and with it all objects, and is then recreated. Meanwhile there is no number,
# and never a wrong one; the HPA keeps its replicas.

hold_at 3
saved='del(.metadata.uid, .metadata.resourceVersion, .metadata.creationTimestamp, .metadata.managedFields, .status)'
kubectl get crd variantautoscalings.llmd.ai -o json | jq "$saved" >"$CLUSTER_DIR/crd.json"
kubectl -n llm get va llama -o json | jq "$saved" >"$CLUSTER_DIR/va.json"
kubectl delete crd variantautoscalings.llmd.ai --timeout=60s >/dev/null
eventually 40 "the CRD is deleted: the HPA has no number" scaling_active_is False
eventually 20 "the metric says so" metric_fails_with "llama"
throughout 30 "the 3 replicas stay" replicas_are "==" 3
eventually 0 "the instance runs and is available" is_available
kubectl create -f "$CLUSTER_DIR/crd.json" >/dev/null
kubectl wait --for=condition=Established crd/variantautoscalings.llmd.ai --timeout=30s >/dev/null
kubectl create -f "$CLUSTER_DIR/va.json" >/dev/null
eventually 60 "CRD and object are back: the HPA has a number" scaling_active_is True
throughout 20 "nothing shrinks" replicas_are ">=" 3
