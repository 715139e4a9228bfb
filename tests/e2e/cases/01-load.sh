# shellcheck shell=bash
# (1) Load up: the HPA raises the Deployment and settles at or above what the load needs. Load down: it shrinks, and nobody waits.

allow 10
high=$(calculate "3.4 * $pod_rps")
low=$(calculate "0.4 * $pod_rps")
needed=$(ceiling "$high / $pod_rps")

set_load "$high"
eventually 180 "load of $high requests/s at $pod_rps a pod: the HPA raises the Deployment to the $needed it needs" replicas_are ">=" "$needed"
eventually 60 "those pods serve" ready_are ">=" "$needed"
eventually 240 "it settles, unchanged for 40 s" settles 240 40
throughout 15 "at or above $needed" replicas_are ">=" "$needed"
peak=$(replicas)

on_step() { reset_stats; } # so that at the end the longest wait is that since the last step
set_load "$low"
eventually 180 "load down to $low requests/s: it shrinks from $peak" replicas_are "<" "$peak"
reset_stats
settled=$(settles 300 45) || failed "it settles again: $settled"
passed "it settles again, unchanged for 45 s: $settled"
longest=$(stat max_wait_s)
is "$longest <= 5" >/dev/null || failed "after its last step the longest wait was $longest s, over 5 s"
passed "after its last step no request waited longer than 5 s: $longest s"
