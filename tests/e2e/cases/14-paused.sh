# shellcheck shell=bash
# (14) The leader is stopped with SIGSTOP for one minute, and then continues. The other instance has decided meanwhile, and no client gets the
# old number again.

hold_at 3
two_instances
eventually 20 "both answer the same number" instance_values_are 3 3
begin_history "wva-0:$wva_port" "wva-1:$second_port"
sleep 3

began=$SECONDS lapsed=$(calculate "$EPOCHREALTIME + 11") # renewed until now, its Lease is valid for 10 s
signal_to wva-0 STOP
allow 4
eventually 40 "wva-0 is stopped: wva-1 takes the Lease" holder_is wva-1
eventually 30 "and decides: maximum raised to 4, which the load needs" value_is "==" 4
eventually 30 "the HPA follows" replicas_are "==" 4
throughout $((60 - (SECONDS - began))) "the number stays" value_is "==" 4
signal_to wva-0 CONT
throughout 15 "wva-0 continues after $((SECONDS - began)) s: nothing changes" value_is "==" 4
eventually 5 "both answer the same number" instance_values_are 4 4
history_holds "wva-0, wva-1" wva-0 "$lapsed" "$EPOCHREALTIME"
assert_eq "answers of the old number $grace s after the new one" "$(answers_that 'status == 200 && when > begun + grace && decider == "wva-1" && value < 4' first)" 0
