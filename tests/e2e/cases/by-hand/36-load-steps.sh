# shellcheck shell=bash
# (36) The default policy without configuration, behind an HPA that syncs every 15 s: load rises from 2 to 8 requests/s in steps and falls again.
# Each step is served by as many replicas as it needs and at most half as many and one more, without waiting. A pod that is replaced meanwhile
# takes no replica along. A pod has a capacity of 2.99 requests/s.

trap 'set_hpa_sync 2s' EXIT
set_hpa_sync 15s
analyzer_is default
allow 1
set_load 2
eventually 90 "maximum 1: the number is 1" value_is "==" 1
eventually 60 "1 replica is Ready" ready_are "==" 1
throughout 60 "2 requests/s: the policy learns the step time" ready_are "==" 1
allow 10

# serves LOAD: the number is right for LOAD and stays, and no request waits
serves() {
  local load=$1 least most now longest
  least=$(ceiling "$load / 2.99")
  most=$(ceiling "1.5 * $least + 1")
  now=$(value)
  is "$least <= $now && $now <= $most" >/dev/null || failed "$now replicas for $load requests/s, which need $least and may have $most"
  reset_stats
  throughout 60 "$load requests/s, at least $least and at most $most replicas: the number stays" value_is "==" "$now"
  longest=$(stat max_wait_s)
  is "$longest <= 1" >/dev/null || failed "a request waited $longest s with $now replicas for $load requests/s"
  passed "$load requests/s with $now replicas: the longest wait is $longest s"
}

for load in 2 4 6 8; do
  set_load "$load"
  began=$SECONDS
  eventually 150 "up to $load requests/s: as many replicas as it needs are Ready" ready_are ">=" "$(ceiling "$load / 2.99")"
  # The reserve is ordered after three minutes of a level, and nothing is removed within five minutes of an addition.
  sleep $((215 - (SECONDS - began)))
  serves "$load"
done

before=$(value) pod=$(pods | cut -d " " -f 1)
kubectl -n llm delete pod "$pod" --wait=false >/dev/null
throughout 120 "pod $pod is replaced: no replica is removed" value_is ">=" "$before"
eventually 60 "all are Ready" ready_are ">=" "$before"

for load in 6 4 2; do
  set_load "$load"
  most=$(ceiling "1.5 * $(ceiling "$load / 2.99") + 1")
  eventually 900 "down to $load requests/s: at most $most replicas" replicas_are "<=" "$most"
  settles 900 320 >/dev/null || failed "the number does not settle at $load requests/s"
  serves "$load"
done
