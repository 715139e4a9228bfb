# shellcheck shell=bash
# (16) The API server goes away for half a minute, and what it remembers is compacted meanwhile, so that every watch is of a past that is no
# more ("too old resource version"). While the Lease lasts numbers go on, and after that.

# etcd METHOD BODY: by its JSON gateway
etcd() { curl --fail --silent --show-error -X POST "http://127.0.0.1:$ETCD_PORT/v3/kv/$1" -d "$2"; }
compact() {
  local revision
  etcd put "{\"key\":\"$(base64 <<<bed)\",\"value\":\"$(base64 <<<"$RANDOM")\"}" >/dev/null # newer than what anybody has seen
  revision=$(etcd range "{\"key\":\"$(base64 <<<bed)\"}" | jq -r .header.revision)
  etcd compaction "{\"revision\":\"$revision\",\"physical\":true}" >/dev/null
}
number_is() { local seen; seen=$(metric_from ask_instance "$wva_port"); echo "$seen"; [ "${seen% *}" = "$1" ]; }

stand_at 3
two_instances
eventually 20 "both give the same number" instances_say 3 3
begin_history "wva-0:$wva_port" "wva-1:$second_port"
sleep 2
stop kube-apiserver KILL
throughout 6 "API server killed, the Lease still good: wva-0 goes on" number_is 3
sleep 24
compact
"$e2e/bed" start "$BED" kube-apiserver >/dev/null
# KWOK has missed leases of its nodes meanwhile: their pods may never be Ready again; new ones are.
"$e2e/bed" stop "$BED" kwok
"$e2e/bed" start "$BED" kwok >/dev/null
kubectl wait --for=condition=Ready nodes --all --timeout=60s >/dev/null
eventually 60 "API server back after 30 s, its past compacted: it reaches us" is_available
eventually 30 "with the number of before" value_is "==" 3
# A bound needs no evidence: Prometheus and the fleet have watches too, and find pods again when theirs are back.
allow 2
eventually 60 "and what changes is seen again: two allowed" value_is "==" 2
eventually 60 "the HPA follows" replicas_are "==" 2
history_is_possible
assert_eq "numbers other than 3 and 2" "$(answers_that 'status == 200 && value != 3 && value != 2' first)" 0
kubectl -n llm delete pods -l app=llama --wait=false >/dev/null
eventually 90 "new pods serve" ready_are "==" 2
