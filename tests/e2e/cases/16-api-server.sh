# shellcheck shell=bash
# (16) The API server is down for 30 s, and etcd is compacted meanwhile, so that every watch has a "too old resource version". While the Lease is
# valid, answers continue. After it expires no instance answers another number, and when the API server is back, answers continue.

# etcd METHOD BODY: calls etcd's JSON gateway
etcd() { curl --fail --silent --show-error -X POST "http://127.0.0.1:$ETCD_PORT/v3/kv/$1" -d "$2"; }
compact() {
  local revision
  etcd put "{\"key\":\"$(base64 <<<test)\",\"value\":\"$(base64 <<<"$RANDOM")\"}" >/dev/null # a revision that no client has seen
  revision=$(etcd range "{\"key\":\"$(base64 <<<test)\"}" | jq -r .header.revision)
  etcd compaction "{\"revision\":\"$revision\",\"physical\":true}" >/dev/null
}
# three_or_none: both instances are up, and neither answers another number
three_or_none() {
  local first second
  first=$(value_or_refusal_of "$wva_port" 3) && second=$(value_or_refusal_of "$second_port" 3) || { echo "wva-0: $first; wva-1: ${second:-}"; return 1; }
  echo "wva-0: $first; wva-1: $second"
}
# met_too_old: how often a watch of either instance failed with a resource version that is too old
met_too_old() {
  local n
  n=$({ log_since wva-0 && log_since wva-1; } | grep -c "too old resource version")
  is "$n >= 1"
}

hold_at 3
mark_log wva-0
mark_log wva-1
WVA_ARGS="--log-level info,wva::cluster=debug" two_instances
eventually 20 "both answer the same number" instance_values_are 3 3
begin_history "wva-0:$wva_port" "wva-1:$second_port"
sleep 2
lapsed=$(calculate "$EPOCHREALTIME + 11") # renewed until now, the Lease is valid for 10 s
stop kube-apiserver KILL
throughout 6 "API server killed, the Lease is still valid: wva-0 keeps answering" instance_value_is "$wva_port" 3
throughout 24 "still no API server: each instance answers 3 or that it has no number" three_or_none
back=$EPOCHREALTIME
compact
"$e2e/cluster" start "$CLUSTER_DIR" kube-apiserver >/dev/null
# KWOK has missed lease renewals of its nodes, so existing pods may never be Ready again; new ones will be.
"$e2e/cluster" stop "$CLUSTER_DIR" kwok
"$e2e/cluster" start "$CLUSTER_DIR" kwok >/dev/null
kubectl wait --for=condition=Ready nodes --all --timeout=60s >/dev/null
eventually 60 "API server back after 30 s with a compacted history: it reaches wva" is_available
eventually 30 "the number is the previous one" value_is "==" 3
# A bound needs no evidence. Prometheus and the fleet have watches too, and find the pods again once these are back.
allow 2
eventually 60 "changes are seen again: maximum 2" value_is "==" 2
eventually 60 "the HPA follows" replicas_are "==" 2
eventually 20 "a watch failed with a resource version that is too old" met_too_old
history_holds "wva-0*" wva-0 "$lapsed" "$back"
assert_eq "numbers other than 3 and 2" "$(answers_that 'status == 200 && value != 3 && value != 2' first)" 0
kubectl -n llm delete pods -l app=llama --wait=false >/dev/null
eventually 90 "new pods are Ready" ready_are "==" 2
