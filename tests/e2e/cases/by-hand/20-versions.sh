# shellcheck shell=bash
# (20) An upgrade and a downgrade with what the other version left: BEFORE, a commit, is started beside this version, decides, hands over, and
# takes over again. The number is the same throughout, and each goes on to decide.

before=${BEFORE:-0f1476e}
older=${BEFORE_WVA:-$BED/before/wva}
if [ ! -x "$older" ]; then
  git -C "$root" worktree add --detach "$BED/before/source" "$before" >/dev/null 2>&1 || failed "no commit $before: name one with BEFORE"
  (cd "$BED/before/source" && nice -n 5 cargo build --locked --bin wva --target-dir "${CARGO_TARGET_DIR:-$root/target}")
  cp "${CARGO_TARGET_DIR:-$root/target}/debug/wva" "$older"
  git -C "$root" worktree remove --force "$BED/before/source"
fi
newer=$WVA

# hands_over OLD PORT NEW PORT PROGRAM NUMBER: NEW, which is PROGRAM, is started beside OLD, which then goes; the number stays.
hands_over() {
  WVA=$5 MAX_STALE=5m start_wva "$3" "$4"
  eventually 20 "$3 beside $1: it answers the same" instance_says "$4" "$6"
  stop "$1"
  eventually 30 "$1 goes: $3 takes the Lease" holder_is "$3"
  throughout 20 "and the number stays" instance_says "$4" "$6"
  point_at "$4"
}
instance_says() { local seen; seen=$(metric_from ask_instance "$1") || { echo "$seen"; return 1; }; echo "${seen% *}"; [ "${seen% *}" = "$2" ]; }

trust_wva
stand_at 3
stop wva-0
WVA=$older MAX_STALE=5m start_wva wva-2 "$balancer_port"
point_at "$balancer_port"
configure "$release_namespace" 'analyzerName: rate' # it learns, and what it has learned is handed over
allow 4
eventually 90 "the version before decides: 4" value_is "==" 4
eventually 30 "which the HPA follows" ready_are "==" 4
sleep 20
hands_over wva-2 "$balancer_port" wva-1 "$second_port" "$newer" 4
! grep -iE "dropped|damaged|not understood" "$BED/logs/wva-1.log" || failed "this version does not understand what the one before left"
passed "upgraded: nothing of what the version before left is dropped"
allow 3
eventually 60 "this version decides: 3" value_is "==" 3
eventually 30 "which the HPA follows" ready_are "==" 3
sleep 20
hands_over wva-1 "$second_port" wva-2 "$balancer_port" "$older" 3
allow 2
eventually 60 "downgraded, the version before decides: 2" value_is "==" 2
stop wva-2
