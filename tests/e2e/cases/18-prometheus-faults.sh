# shellcheck shell=bash
# (18) Prometheus answers late, with an error, with a truncated body, or with the series of only half of the pods. None of these shrinks a
# fleet whose load falls meanwhile. When Prometheus works again, scaling continues. The default policy decides without configuration, or
# ANALYZER. With FALLS_WITHIN, the number must fall within that many seconds; otherwise it has to rise, which takes less time.

analyzer_is "${ANALYZER:-default}"
hold_at 3
stop wva-0
start_proxy prometheus "$PROMETHEUS_URL"
WVA_PROMETHEUS_URL=http://$prometheus_url MAX_STALE=5m start_wva wva-0 "$wva_port"
eventually 60 "Prometheus through a faulty proxy: the number is 3" value_is "==" 3
sleep 5

inject_fault prometheus answers=slow
set_load "$(calculate "0.4 * $pod_rps")" # from here on, fresh metrics would lead to a scale-down
throughout 25 "no answer in time: held" value_is "==" 3
inject_fault prometheus answers=failed
throughout 15 "errors: held" value_is "==" 3
inject_fault prometheus answers=truncated
throughout 15 "truncated body: held" value_is "==" 3
inject_fault prometheus answers=closed
throughout 10 "connections closed: held" value_is "==" 3
inject_fault prometheus answers=partial
throughout 40 "series of half of the pods only: held" value_is "==" 3
eventually 0 "the HPA keeps its replicas" replicas_are "==" 3
inject_fault prometheus delay=300
if [ -n "${FALLS_WITHIN:-}" ]; then
  eventually "$FALLS_WITHIN" "Prometheus slow but complete again: the number falls" value_is "<" 3
else
  allow 4
  set_load "$(calculate "4.3 * $pod_rps")"
  eventually 90 "Prometheus slow but complete again: the number rises to 4 for a load that needs it" value_is "==" 4
  eventually 30 "the HPA follows" replicas_are "==" 4
fi
