# shellcheck shell=bash
# (21) The clock of one instance is two minutes ahead, then two minutes behind. It forwards the other's decisions. When it has to decide itself,
# every sample is old or in the future: it holds the number, and the HPA keeps its replicas. `--max-stale` has its default of 5 min, so
# an offset of two minutes must not cost the number.

library=$(find /usr/lib /usr/local/lib -name libfaketime.so.1 2>/dev/null | head -n 1)
[ -n "$library" ] || failed "no libfaketime: apt-get install libfaketime"
# A static program cannot preload a library, so build the same source with dynamic linking.
(cd "$root" && nice -n 5 cargo build --locked --bin wva)
linked=${CARGO_TARGET_DIR:-$root/target}/debug/wva
export MAX_STALE=5m WVA_ARGS="--record-snapshots 8"

# both_hold: the instance answers 3, and the HPA has a number and 3 replicas
both_hold() {
  local number active
  number=$(instance_value_is "$second_port" 3) || { echo "$number"; return 1; }
  active=$(scaling_active_is True) || { echo "$active"; return 1; }
  echo "$number, $active, $(replicas_are "==" 3)"
  replicas_are "==" 3 >/dev/null
}

# skew_is TEXT: what `wva check` with the clock of the instance says about it
skew_is() {
  local actual
  actual=$(env LD_PRELOAD="$library" FAKETIME="$offset" DONT_FAKE_MONOTONIC=1 "$linked" check --kubeconfig "$KUBECONFIG" \
    --prometheus-url "$PROMETHEUS_URL" --output json | jq -r '.findings[] | select(.reason == "ClockSkew") | .severity + ": " + .set')
  echo "$actual"
  # shellcheck disable=SC2053 # a pattern
  [[ $actual == $1 ]]
}
declare -A skews=([+120s]="warning: its clock is 1?? s behind the one here" [-120s]="error: its clock is 1?? s ahead of the one here")

hold_at 3
stop wva-0
for offset in +120s -120s; do
  stop wva-1
  baseline
  trust_wva
  eventually 30 "wva-0 holds the Lease" holder_is wva-0
  eventually 30 "and answers 3" value_is "==" 3
  WVA=$linked WVA_UNDER="env LD_PRELOAD=$library FAKETIME=$offset DONT_FAKE_MONOTONIC=1" start_wva wva-1 "$second_port"
  log=$(sed -n 's/^\x1b\?[^0-9]*\(20[0-9T:-]*\).*/\1/p' "$CLUSTER_DIR/logs/wva-1.log" | tail -n 1)
  passed "wva-1 logs ${log}, and the time is $(date -u +%FT%T): $offset"
  eventually 0 "a check with that clock says so of Prometheus" skew_is "${skews[$offset]}"
  begin_history "wva-0:$wva_port" "wva-1:$second_port"
  eventually 20 "wva-1 forwards the decisions of wva-0" instance_values_are 3 3
  sleep 3
  stop wva-0 KILL
  route_api_server_to "$second_port"
  eventually 40 "wva-0 is killed: wva-1 takes the Lease" holder_is wva-1
  eventually 10 "the HPA reads from wva-1" scaling_active_is True
  throughout 45 "it keeps answering 3, and the HPA keeps its replicas" both_hold
  start_wva wva-0 "$wva_port"
  stop wva-1
  route_api_server_to "$wva_port"
  eventually 40 "an instance with the correct time takes over: 3" value_is "==" 3
  if [ "$offset" = +120s ]; then
    history_holds "wva-0, wva-1, wva-0"
  else # evidence in its future counts as of now, so the evidence does not tell which instance decided such a number
    history_is_possible
  fi
  assert_eq "numbers other than 3, of $(answers_that 'status == 200')" "$(answers_that 'status == 200 && value != 3' first)" 0
done
