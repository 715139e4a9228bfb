# shellcheck shell=bash
# (20) An upgrade and a downgrade with the state of the other version. BEFORE, a commit (by default the previous one), leads, hands over to this
# version, and takes over again. The number stays the same, neither version drops state of the other, and each continues to
# decide. BEFORE_WVA: a prebuilt program of that commit.

before=${BEFORE:-HEAD~1}
older=${BEFORE_WVA:-$CLUSTER_DIR/before/wva}
if [ ! -x "$older" ]; then
  git -C "$root" worktree add --detach "$CLUSTER_DIR/before/source" "$before" >/dev/null 2>&1 || failed "no commit $before: name one with BEFORE"
  built=${CARGO_TARGET_DIR:-$root/target}/before # not the directory of WVA
  (cd "$CLUSTER_DIR/before/source" && nice -n 5 cargo build --locked --bin wva --target-dir "$built")
  cp "$built/debug/wva" "$older"
  git -C "$root" worktree remove --force "$CLUSTER_DIR/before/source"
fi
newer=$WVA

# hand_over OLD PORT NEW PORT PROGRAM NUMBER: starts NEW with PROGRAM, and then stops OLD; the number stays.
hand_over() {
  mark_log "$3"
  WVA=$5 MAX_STALE=5m WVA_ARGS="--record-snapshots 8" start_wva "$3" "$4"
  eventually 20 "$3 runs beside $1 and answers the same number" instance_value_is "$4" "$6"
  stop "$1"
  eventually 30 "$1 stops: $3 takes the Lease" holder_is "$3"
  throughout 20 "the number stays" instance_value_is "$4" "$6"
  route_api_server_to "$4"
}

# assert_nothing_dropped NAME PORT: the instance has dropped no state of the other version
assert_nothing_dropped() {
  ! log_since "$1" | grep -iE "dropped|damaged|not understood" || failed "$1 dropped state of the other version"
  assert_eq "$3: dropped parts of the other version's state" "$(counted "$2" wva_memory_dropped_total)" 0
}

trust_wva
hold_at 3
stop wva-0
WVA=$older MAX_STALE=5m WVA_ARGS="--record-snapshots 8" start_wva wva-2 "$balancer_port"
route_api_server_to "$balancer_port"
begin_history "wva-2:$balancer_port" "wva-1:$second_port"
analyzer_is rate # it learns, and what it has learned is handed over
allow 4
eventually 90 "the previous version ($before) decides: 4" value_is "==" 4
eventually 30 "the HPA follows" ready_are "==" 4
sleep 20
hand_over wva-2 "$balancer_port" wva-1 "$second_port" "$newer" 4
assert_nothing_dropped wva-1 "$second_port" upgraded
allow 3
eventually 60 "this version decides: 3" value_is "==" 3
eventually 30 "the HPA follows" ready_are "==" 3
sleep 20
hand_over wva-1 "$second_port" wva-2 "$balancer_port" "$older" 3
assert_nothing_dropped wva-2 "$balancer_port" downgraded
allow 2
eventually 60 "after the downgrade, the previous version decides: 2" value_is "==" 2
history_holds "wva-2, wva-1, wva-2"
stop wva-2
