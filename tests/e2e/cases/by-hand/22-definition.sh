# shellcheck shell=bash
# (22) The definition of VariantAutoscalings is deleted while an HPA reads, and all objects with it, and comes back. No number meanwhile, and
# none that is wrong; what HPAs scale stays.

hold_at 3
saved='del(.metadata.uid, .metadata.resourceVersion, .metadata.creationTimestamp, .metadata.managedFields, .status)'
kubectl get crd variantautoscalings.llmd.ai -o json | jq "$saved" >"$CLUSTER_DIR/crd.json"
kubectl -n llm get va llama -o json | jq "$saved" >"$CLUSTER_DIR/va.json"
kubectl delete crd variantautoscalings.llmd.ai --timeout=60s >/dev/null
eventually 40 "the definition deleted: the HPA has no number" scaling_active_is False
eventually 20 "which the metric says" metric_fails_with "llama"
throughout 30 "the 3 replicas are held" replicas_are "==" 3
eventually 0 "the instance is up and available" is_available
kubectl create -f "$CLUSTER_DIR/crd.json" >/dev/null
kubectl wait --for=condition=Established crd/variantautoscalings.llmd.ai --timeout=30s >/dev/null
kubectl create -f "$CLUSTER_DIR/va.json" >/dev/null
eventually 60 "definition and object are back: the HPA has a number" scaling_active_is True
throughout 20 "and nothing shrinks" replicas_are ">=" 3
