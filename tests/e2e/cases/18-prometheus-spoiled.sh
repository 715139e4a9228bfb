# shellcheck shell=bash
# (18) Prometheus answers late, with an error, half a body, or, as if that were all, the series of half of the pods. None of these shrinks a
# fleet whose load falls meanwhile; and when it answers again, the number goes on. The default policy decides, with nothing configured, or
# ANALYZER. FALLS_WITHIN: in so many seconds the number must have fallen; otherwise it has to rise, which takes less time.

analyzer_is "${ANALYZER:-default}"
hold_at 3
stop wva-0
start_proxy prometheus "$PROMETHEUS_URL"
WVA_PROMETHEUS_URL=http://$prometheus_url MAX_STALE=5m start_wva wva-0 "$wva_port"
eventually 60 "Prometheus through a network that fails on demand: the number is 3" value_is "==" 3
sleep 5

inject_fault prometheus answers=slow
set_load "$(calculate "0.4 * $pod_rps")" # from here on, whatever could see would shrink
throughout 25 "no answer in time: held" value_is "==" 3
inject_fault prometheus answers=failed
throughout 15 "errors: held" value_is "==" 3
inject_fault prometheus answers=truncated
throughout 15 "half a body: held" value_is "==" 3
inject_fault prometheus answers=closed
throughout 10 "connections closed: held" value_is "==" 3
inject_fault prometheus answers=partial
throughout 40 "half of the pods, as if that were all: held" value_is "==" 3
eventually 0 "and the HPA holds" replicas_are "==" 3
inject_fault prometheus delay=300
if [ -n "${FALLS_WITHIN:-}" ]; then
  eventually "$FALLS_WITHIN" "slow, and whole again: the number goes on and falls" value_is "<" 3
else
  allow 4
  set_load "$(calculate "4.3 * $pod_rps")"
  eventually 90 "slow, and whole again: the number goes on, to 4 for a load that asks for it" value_is "==" 4
  eventually 30 "which the HPA follows" replicas_are "==" 4
fi
