# shellcheck shell=bash
# (12) The rate policy with an HPA that looks every 15 s: steps of load are carried as soon as the pods are there, and while a load stands
# its number does not move.

hpa_looks_every() {
  sed -i "s/^HPA_SYNC=.*/HPA_SYNC=$1/" "$CLUSTER_DIR/env"
  "$e2e/cluster" stop "$CLUSTER_DIR" kube-controller-manager
  "$e2e/cluster" start "$CLUSTER_DIR" kube-controller-manager >/dev/null
}
trap 'hpa_looks_every 2s' EXIT
hpa_looks_every 15s

allow 1
set_load 1
configure "$release_namespace" 'analyzerName: rate'
eventually 90 "one allowed: the number is 1" value_is "==" 1
eventually 60 "and so are the replicas" ready_are "==" 1
throughout 60 "1 request/s, of which a pod carries 2.99: what a step takes is learned" ready_are "==" 1
allow 10
throughout 30 "ten allowed: one is enough, and nothing had to saturate to know that" value_is "==" 1

# A reserve that is missing is ordered once the level is 90 s old.
for step in "3 2 4" "6 3 5"; do
  read -r load least most <<<"$step"
  set_load "$load"
  eventually 110 "$load requests/s: at least $least replicas" replicas_are ">=" "$least"
  eventually 40 "which serve" ready_are ">=" "$least"
  settles 420 110 >/dev/null || failed "the number does not settle at $load requests/s"
  reset_stats
  steady=$(value)
  is "$steady <= $most" >/dev/null || failed "$steady replicas for $load requests/s"
  throughout 60 "while $load requests/s stand, so does the number" value_is "==" "$steady"
  longest=$(stat max_wait_s)
  is "$longest <= 1" >/dev/null || failed "a request waited $longest s with $steady replicas for $load requests/s"
  passed "and nobody waits: $longest s at most"
done

# With nothing in memory and samples of a minute: what was learned is in the state objects, at most five minutes old.
allow_explain
stop wva-0 KILL
start_wva wva-0 "$wva_port"
eventually 30 "killed and restarted: the number is that of before" value_is "==" "$steady"
eventually 20 "and it knows what replicas carry" explanation_has "replicas carry"
throughout 60 "so that it lowers nothing" value_is ">=" "$steady"
