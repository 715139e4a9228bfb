# shellcheck shell=bash
# (23) Under a standing load the readiness of one pod after the other flaps: nothing shrinks. Then one pod is never Ready again while load
# rises: the fleet grows by what it needs, the broken pod does not stand in its way, and when it is back what stood in for it goes. The
# default policy decides, with nothing configured.

analyzer_is default
stand_at 3
allow 10
set_load "$(calculate "2.3 * $one")"
least=3 flaps=0
for round in 1 2 3; do
  for pod in $(pods); do
    ready_is "$pod" False || continue # it has been removed meanwhile
    sleep 3
    is "$(value) >= $least" >/dev/null || failed "a number of $(value) while the readiness of $pod flaps, in round $round"
    ready_is "$pod" True || true
    flaps=$((flaps + 1))
    sleep 1
  done
done
passed "the readiness of every pod flapped in turn, $flaps times: never less than $least, now $(value)"
eventually 240 "it settles" settles 240 40

read -r broken _ <<<"$(pods)"
breaking() { while true; do ready_is "$broken" False || true; sleep 2; done; }
breaking &
breaker=$!
trap 'kill $breaker 2>/dev/null || true' EXIT
before=$(replicas)
load=4.3
set_load "$(calculate "$load * $one")"
needed=$(ceiling "$load")
eventually 180 "$broken is broken and load rises to what $needed pods carry: so many are Ready beside it" ready_are ">=" "$needed"
eventually 240 "and it settles" settles 240 60
most=$(replicas)
is "$most <= $needed + 4" >"$BED/seen" || failed "$(<"$BED/seen"): replacements without end"
passed "from $before to $most replicas in all"
throughout 60 "and it does not shrink" ready_are ">=" "$needed"
kill $breaker
ready_is "$broken" True
all_ready() { is "$(ready) == $(replicas)"; }
eventually 60 "$broken is back: all are Ready" all_ready
eventually 600 "and what stood in for it goes" replicas_are "<" "$most"
throughout 60 "while what the load needs stays" ready_are ">=" "$needed"
