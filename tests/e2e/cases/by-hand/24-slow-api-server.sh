# shellcheck shell=bash
# (24) The API server takes half a second more, each way, for everything that both instances ask: the Lease is kept, numbers follow.

hold_at 3
two_instances
eventually 20 "both give the same number" instance_values_are 3 3
begin_history "wva-0:$wva_port" "wva-1:$second_port"
inject_fault api_0 delay=500
inject_fault api_1 delay=500
throughout 25 "every answer of the API server takes a second: the number stays" value_is "==" 3
allow 4
eventually 40 "and follows: 4" value_is "==" 4
inject_fault api_0
inject_fault api_1
history_holds "wva-0"
