# shellcheck shell=bash
# (1) The load rises: the HPA scales the Deployment up and settles at or above what the load needs. The load falls: it scales down, and no request waits.

allow 10
high=$(calculate "3.4 * $pod_rps")
low=$(calculate "0.4 * $pod_rps")
needed=$(ceiling "$high / $pod_rps")

set_load "$high"
eventually 180 "load of $high requests/s at $pod_rps per pod: the HPA scales up to the $needed replicas that it needs" replicas_are ">=" "$needed"
eventually 60 "these pods are Ready" ready_are ">=" "$needed"
eventually 240 "the count settles, unchanged for 40 s" settles 240 40
throughout 15 "it stays at or above $needed" replicas_are ">=" "$needed"
peak=$(replicas)

on_step() { reset_stats; } # so that the longest wait is measured from the last step
set_load "$low"
eventually 180 "load down to $low requests/s: it scales down from $peak" replicas_are "<" "$peak"
reset_stats
settled=$(settles 300 45) || failed "the count does not settle again: $settled"
passed "the count settles again, unchanged for 45 s: $settled"
longest=$(stat max_wait_s)
is "$longest <= 5" >/dev/null || failed "after its last step the longest wait was $longest s, over 5 s"
passed "after its last step no request waited longer than 5 s: $longest s"
