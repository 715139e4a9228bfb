# shellcheck shell=bash
# (28) The kernel kills wva because its container is out of memory. After a restart, as by the kubelet, its first number is the previous one.

memory_group small $((128 * 1024 * 1024)) || failed "cannot create a memory cgroup: run as root where /sys/fs/cgroup is writable"
trap 'stop hog; sleep 1; rmdir "$group"' EXIT
hold_at 3
stop wva-0
WVA_UNDER="$CLUSTER_DIR/in-group choom -n 1000 --" WVA_ARGS="--record-snapshots 8" start_wva wva-0 "$wva_port"
eventually 30 "wva in a container of 128 MiB: the number is 3" value_is "==" 3
begin_history "wva-0:$wva_port"
sleep 3
# Another process in the container grows, and the OOM score makes the kernel prefer wva. (Protecting the other process needs a capability that
# containers lack.)
spawn hog "$CLUSTER_DIR/in-group" bash -c 'head -c 4G /dev/zero | tail -c 120M >/dev/null'
is_killed() { ! alive wva-0 && echo "$(killed_in_group) killed by the kernel" && [ "$(killed_in_group)" -ge 1 ]; }
eventually 30 "the container is out of memory: wva is killed" is_killed
stop hog
throughout 10 "the 3 replicas stay" replicas_are "==" 3
WVA_UNDER=$CLUSTER_DIR/in-group WVA_ARGS="--record-snapshots 8" start_wva wva-0 "$wva_port"
first_number() {
  local actual
  actual=$(metric_from ask_instance "$wva_port") || { echo "$actual"; return 1; }
  echo "${actual% *}"
}
trust_wva
eventually 20 "after the restart it has a number" first_number >"$CLUSTER_DIR/first"
cat "$CLUSTER_DIR/first"
grep -q ": 3 (after" "$CLUSTER_DIR/first" || failed "its first number is not the previous 3"
throughout 20 "the number stays" value_is "==" 3
history_holds wva-0
assert_eq "numbers other than 3, of $(answers_that 'status == 200')" "$(answers_that 'status == 200 && value != 3' first)" 0
stop wva-0
