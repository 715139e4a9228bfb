# shellcheck shell=bash
# (26) IPv6 only, and dual stack: instances on ::1 answer and forward to each other; an instance on :: answers on both protocols.

grep -q . /proc/net/if_inet6 2>/dev/null || failed "this machine has no IPv6"
trap "stop wva-1; stop wva-0" EXIT
hold_at 2
stop wva-0
rm -f "$CLUSTER_DIR/wva-ca.crt"
WVA_ARGS="--record-snapshots 8" WVA_ADDRESS=::1 WVA_HOST='[::1]' start_wva wva-0 "$wva_port"
eventually 30 "wva-0 on ::1 holds the Lease" holder_is wva-0
WVA_ARGS="--record-snapshots 8" WVA_ADDRESS=::1 WVA_HOST='[::1]' start_wva wva-1 "$second_port"
trust_wva
# at ADDRESS PORT: the instance there answers 2
at() {
  local actual
  actual=$(instance_host=$1 metric_from ask_instance "$2") || { echo "$actual"; return 1; }
  echo "${actual% *}"
  [ "${actual% *}" = 2 ]
}
eventually 30 "wva-0 answers 2 on [::1]" at '[::1]' "$wva_port"
eventually 20 "wva-1 answers 2 too, by forwarding" at '[::1]' "$second_port"
address=$(kubectl -n "$release_namespace" get lease "$lease" -o jsonpath='{.metadata.annotations.wva\.llmd\.ai/address}')
assert_eq "the address to which reads are forwarded" "$address" "https://[::1]:$wva_port"
! grep -F "cannot be reached" "$CLUSTER_DIR/logs/wva-1.log" || failed "wva-1 could not reach wva-0"
eventually 40 "the API server reaches it" is_available
begin_history "wva-0:[::1]:$wva_port" "wva-1:[::1]:$second_port"
sleep 6
stop wva-0
route_api_server_to "$second_port"
eventually 40 "wva-0 stops: wva-1 takes the Lease" holder_is wva-1
throughout 10 "and answers 2" at '[::1]' "$second_port"
history_holds "wva-0, wva-1"
stop wva-1
route_api_server_to "$wva_port"
WVA_ADDRESS=:: start_wva wva-0 "$wva_port"
eventually 30 "listening on ::, wva-0 answers on 127.0.0.1" at 127.0.0.1 "$wva_port"
eventually 5 "and on [::1]" at '[::1]' "$wva_port"
stop wva-0
