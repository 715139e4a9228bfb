# shellcheck shell=bash
# (12) The rate policy with an HPA that syncs every 15 s: load steps are served as soon as the pods are Ready, and the number stays constant
# under constant load.

trap 'set_hpa_sync 2s' EXIT
set_hpa_sync 15s

allow 1
set_load 1
configure "$release_namespace" 'analyzerName: rate'
eventually 90 "maximum 1: the number is 1" value_is "==" 1
eventually 60 "1 replica is Ready" ready_are "==" 1
throughout 60 "1 request/s at a capacity of 2.99 per pod: the policy learns the step time" ready_are "==" 1
allow 10
throughout 30 "maximum 10: one replica is enough, and no replica had to saturate first" value_is "==" 1

# A missing reserve is ordered once the load level is three minutes old, and replicas are removed five minutes after an addition at the
# earliest: in between the number stays.
for step in "3 2 4" "6 3 5"; do
  read -r load least most <<<"$step"
  set_load "$load"
  began=$SECONDS
  eventually 110 "$load requests/s: at least $least replicas" replicas_are ">=" "$least"
  eventually 40 "they are Ready" ready_are ">=" "$least"
  sleep $((215 - (SECONDS - began)))
  settles 420 10 >/dev/null || failed "the number does not settle at $load requests/s"
  reset_stats
  steady=$(value)
  is "$steady <= $most" >/dev/null || failed "$steady replicas for $load requests/s"
  throughout 60 "under a constant $load requests/s the number stays" value_is "==" "$steady"
  longest=$(stat max_wait_s)
  is "$longest <= 1" >/dev/null || failed "a request waited $longest s with $steady replicas for $load requests/s"
  passed "the longest wait of a request is $longest s"
done

# The restarted instance has no memory and one minute of samples. The state objects have what was learned, at most five minutes old.
allow_explain
stop wva-0 KILL
start_wva wva-0 "$wva_port"
eventually 30 "killed and restarted: the number is the previous one" value_is "==" "$steady"
eventually 20 "it knows the capacity of a replica" explanation_has "capacity of a replica of llama"
throughout 60 "so it does not lower the number" value_is ">=" "$steady"
