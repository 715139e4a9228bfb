# shellcheck shell=bash
# (24) The API server takes 0.5 s longer in each direction for all requests of both instances: the leader keeps the Lease, and numbers are updated.

hold_at 3
two_instances
eventually 20 "both answer the same number" instance_values_are 3 3
begin_history "wva-0:$wva_port" "wva-1:$second_port"
inject_fault api_0 delay=500
inject_fault api_1 delay=500
throughout 25 "every request to the API server takes 1 s longer: the number stays" value_is "==" 3
allow 4
eventually 40 "maximum 4: the number follows" value_is "==" 4
inject_fault api_0
inject_fault api_1
history_holds "wva-0"
