# shellcheck shell=bash
# (20) An upgrade and a downgrade with what the other version left: BEFORE, a commit (the one before this), is started beside this version,
# decides, hands over, and takes over again. The number is the same throughout, nothing of what the other left is dropped, and each goes on to
# decide. BEFORE_WVA: its program, where there is one already.

before=${BEFORE:-HEAD~1}
older=${BEFORE_WVA:-$CLUSTER_DIR/before/wva}
if [ ! -x "$older" ]; then
  git -C "$root" worktree add --detach "$CLUSTER_DIR/before/source" "$before" >/dev/null 2>&1 || failed "no commit $before: name one with BEFORE"
  built=${CARGO_TARGET_DIR:-$root/target}/before # not where WVA may be
  (cd "$CLUSTER_DIR/before/source" && nice -n 5 cargo build --locked --bin wva --target-dir "$built")
  cp "$built/debug/wva" "$older"
  git -C "$root" worktree remove --force "$CLUSTER_DIR/before/source"
fi
newer=$WVA

# hands_over OLD PORT NEW PORT PROGRAM NUMBER: NEW, which is PROGRAM, is started beside OLD, which then goes; the number stays.
hands_over() {
  mark_log "$3"
  WVA=$5 MAX_STALE=5m WVA_ARGS="--record-snapshots 8" start_wva "$3" "$4"
  eventually 20 "$3 beside $1: it answers the same" instance_value_is "$4" "$6"
  stop "$1"
  eventually 30 "$1 goes: $3 takes the Lease" holder_is "$3"
  throughout 20 "and the number stays" instance_value_is "$4" "$6"
  route_api_server_to "$4"
}

# understands_all NAME PORT WHAT: it has dropped nothing of what the other version left
understands_all() {
  ! log_since "$1" | grep -iE "dropped|damaged|not understood" || failed "$1 does not understand what the other version left"
  assert_eq "$3: parts of what the other version left that are dropped" "$(counted "$2" wva_memory_dropped_total)" 0
}

trust_wva
hold_at 3
stop wva-0
WVA=$older MAX_STALE=5m WVA_ARGS="--record-snapshots 8" start_wva wva-2 "$balancer_port"
route_api_server_to "$balancer_port"
begin_history "wva-2:$balancer_port" "wva-1:$second_port"
analyzer_is rate # it learns, and what it has learned is handed over
allow 4
eventually 90 "the version before ($before) decides: 4" value_is "==" 4
eventually 30 "which the HPA follows" ready_are "==" 4
sleep 20
hands_over wva-2 "$balancer_port" wva-1 "$second_port" "$newer" 4
understands_all wva-1 "$second_port" upgraded
allow 3
eventually 60 "this version decides: 3" value_is "==" 3
eventually 30 "which the HPA follows" ready_are "==" 3
sleep 20
hands_over wva-1 "$second_port" wva-2 "$balancer_port" "$older" 3
understands_all wva-2 "$balancer_port" downgraded
allow 2
eventually 60 "downgraded, the version before decides: 2" value_is "==" 2
history_holds "wva-2, wva-1, wva-2"
stop wva-2
