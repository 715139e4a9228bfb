# shellcheck shell=bash
# (23) Under a standing load the readiness of one pod after the other flaps: nothing shrinks. Then one pod is never Ready again while load
# rises: the fleet grows by what it needs, the broken pod does not stand in its way, and what grew goes when the pod is back.

# ready_is POD True|False: as its kubelet would say
ready_is() {
  kubectl -n llm patch pod "$1" --subresource=status --type strategic \
    -p "{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"$2\"},{\"type\":\"ContainersReady\",\"status\":\"$2\"}]}}" >/dev/null
}
pods() { kubectl -n llm get pods -l app=llama -o jsonpath='{.items[*].metadata.name}'; }

stand_at 3
allow 10
set_load "$(calculate "2.3 * $one")"
least=3
for i in 1 2 3 4 5 6 7 8; do
  for pod in $(pods); do
    ready_is "$pod" False || true
    sleep 3
    is "$(value) >= $least" >/dev/null || failed "a number of $(value) while the readiness of $pod flaps"
    ready_is "$pod" True || true
    sleep 1
    break
  done
done
passed "readiness flapped 8 times: never less than $least, now $(value)"
eventually 240 "it settles" settles 240 40

before=$(replicas)
read -r broken _ <<<"$(pods)"
breaking() { while true; do ready_is "$broken" False || true; sleep 2; done; }
breaking &
breaker=$!
trap 'kill $breaker 2>/dev/null || true' EXIT
load=$(calculate "$before + 1.3")
set_load "$(calculate "$load * $one")"
needed=$(ceiling "$load")
eventually 180 "$broken is broken and load rises to what $needed pods carry: so many are Ready beside it" ready_are ">=" "$needed"
is "$(replicas) <= $needed + 4" >"$BED/seen" || failed "$(<"$BED/seen"): replacements without end"
passed "with $(replicas) replicas in all"
throughout 60 "and it does not shrink" ready_are ">=" "$needed"
kill $breaker
ready_is "$broken" True
all_ready() { is "$(ready) == $(replicas)"; }
eventually 60 "$broken is back: all are Ready" all_ready
