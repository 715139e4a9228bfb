# shellcheck shell=bash
# (3) Missing metrics never shrink a fleet. Prometheus stops: the number is held with its age; once older than --max-stale (60 s here), it becomes an
# error that names Prometheus, and the HPA keeps its replicas. Prometheus returns: scaling continues.

hold_at 3

"$e2e/cluster" stop "$CLUSTER_DIR" prometheus
set_load "$(calculate "0.4 * $pod_rps")" # from here on, fresh metrics would lead to a scale-down
eventually 45 "Prometheus stopped, load down: the number 3 is held with its age" held_with_age 3 25
eventually 0 "a namespace can be deleted meanwhile" namespace_is_deleted
eventually 60 "after 60 s it is an error, and the HPA's condition names Prometheus" hpa_reports FailedGetExternalMetric Prometheus
eventually 5 "kubectl get --raw says so too" metric_fails_with Prometheus
throughout 20 "the 3 replicas stay" replicas_are "==" 3

"$e2e/cluster" start "$CLUSTER_DIR" prometheus >/dev/null
eventually 60 "Prometheus back: the HPA has a number again" scaling_active_is True
eventually 150 "scaling continues: the load had fallen, so the fleet shrinks" replicas_are "<" 3
