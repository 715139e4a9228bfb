# shellcheck shell=bash
# (4) wva is killed: the replicas stay. It restarts: the number is correct again. Namespaces can be deleted while it is up, and also while it is
# down if its APIServices are deleted. (In Kubernetes, an APIService without a server blocks namespace deletion; deleting it is the workaround.)

hold_at 3
eventually 0 "wva is up: a namespace can be deleted" namespace_is_deleted

stop wva-0 KILL
eventually 20 "wva is killed: the HPA has no number" scaling_active_is False
throughout 15 "the 3 replicas stay" replicas_are "==" 3

kubectl delete apiservice v1beta1.external.metrics.k8s.io v1alpha1.decisions.wva.llmd.ai >/dev/null
eventually 0 "wva is down, its APIServices are deleted: a namespace can be deleted" namespace_is_deleted

install_chart # as a user would restore it
route_api_server_to "$wva_port"
start_wva wva-0 "$wva_port"
eventually 60 "wva is restarted: the API server reaches it" is_available
eventually 30 "its first number is the previous 3" value_is "==" 3
eventually 20 "the HPA has a number again" scaling_active_is True
throughout 45 "replicas stay at 3" replicas_are "==" 3
eventually 0 "a namespace can be deleted again" namespace_is_deleted
