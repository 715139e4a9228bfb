# shellcheck shell=bash
# (4) wva killed: replicas are held. Restarted: the number is right again. Namespaces can be deleted while it is up, and while it is down
# once its APIService is gone (an APIService without a server holds up namespace deletion: that is Kubernetes, and the way out).

hold_at 3
eventually 0 "wva up: a namespace can be deleted" namespace_is_deleted

stop wva-0 KILL
eventually 20 "wva killed: the HPA has no number" scaling_active_is False
throughout 15 "the 3 replicas are held" replicas_are "==" 3

kubectl delete apiservice v1beta1.external.metrics.k8s.io >/dev/null
eventually 0 "wva down, its APIService removed: a namespace can be deleted" namespace_is_deleted

install_chart # as a user would bring it back
route_api_server_to "$wva_port"
start_wva wva-0 "$wva_port"
eventually 60 "wva restarted: the API server reaches it" is_available
eventually 30 "its first number is the 3 of before" value_is "==" 3
eventually 20 "the HPA has a number again" scaling_active_is True
throughout 45 "replicas stay at 3" replicas_are "==" 3
eventually 0 "a namespace can be deleted again" namespace_is_deleted
