# shellcheck shell=bash
# (16) The API server goes away for half a minute, and what it remembers is compacted meanwhile, so that every watch is of a past that is no
# more ("too old resource version"). While the Lease lasts numbers go on; when it has run out nobody answers another one, and after that they go on.

# etcd METHOD BODY: by its JSON gateway
etcd() { curl --fail --silent --show-error -X POST "http://127.0.0.1:$ETCD_PORT/v3/kv/$1" -d "$2"; }
compact() {
  local revision
  etcd put "{\"key\":\"$(base64 <<<test)\",\"value\":\"$(base64 <<<"$RANDOM")\"}" >/dev/null # newer than what anybody has seen
  revision=$(etcd range "{\"key\":\"$(base64 <<<test)\"}" | jq -r .header.revision)
  etcd compaction "{\"revision\":\"$revision\",\"physical\":true}" >/dev/null
}
# three_or_none: both instances are up, and neither has another number
three_or_none() {
  local first second
  first=$(value_or_refusal_of "$wva_port" 3) && second=$(value_or_refusal_of "$second_port" 3) || { echo "wva-0: $first; wva-1: ${second:-}"; return 1; }
  echo "wva-0: $first; wva-1: $second"
}
# met_too_old: how often a watch of either was told that it is of a past that is no more
met_too_old() {
  local n
  n=$({ log_since wva-0 && log_since wva-1; } | grep -c "too old resource version")
  is "$n >= 1"
}

hold_at 3
mark_log wva-0
mark_log wva-1
WVA_ARGS="--log-level info,wva::cluster=debug" two_instances
eventually 20 "both give the same number" instance_values_are 3 3
begin_history "wva-0:$wva_port" "wva-1:$second_port"
sleep 2
lapsed=$(calculate "$EPOCHREALTIME + 11") # renewed until now, the Lease is good for 10 s
stop kube-apiserver KILL
throughout 6 "API server killed, the Lease still good: wva-0 goes on" instance_value_is "$wva_port" 3
throughout 24 "still no API server: each answers 3 or that it has no number" three_or_none
back=$EPOCHREALTIME
compact
"$e2e/cluster" start "$CLUSTER_DIR" kube-apiserver >/dev/null
# KWOK has missed leases of its nodes meanwhile: their pods may never be Ready again; new ones are.
"$e2e/cluster" stop "$CLUSTER_DIR" kwok
"$e2e/cluster" start "$CLUSTER_DIR" kwok >/dev/null
kubectl wait --for=condition=Ready nodes --all --timeout=60s >/dev/null
eventually 60 "API server back after 30 s, its past compacted: it reaches us" is_available
eventually 30 "with the number of before" value_is "==" 3
# A bound needs no evidence: Prometheus and the fleet have watches too, and find pods again when theirs are back.
allow 2
eventually 60 "and what changes is seen again: two allowed" value_is "==" 2
eventually 60 "the HPA follows" replicas_are "==" 2
eventually 20 "a watch was told that its resource version is too old" met_too_old
history_holds "wva-0*" wva-0 "$lapsed" "$back"
assert_eq "numbers other than 3 and 2" "$(answers_that 'status == 200 && value != 3 && value != 2' first)" 0
kubectl -n llm delete pods -l app=llama --wait=false >/dev/null
eventually 90 "new pods serve" ready_are "==" 2
