# shellcheck shell=bash
# (25) The disk for recordings is full: decisions continue, lost evaluations are counted, and the written ones can be read.

hold_at 2
disk=$CLUSTER_DIR/disk
mkdir -p "$disk"
mount -t tmpfs -o size=512k none "$disk" 2>/dev/null || failed "cannot mount a small file system: needs root"
trap 'stop wva-0; umount "$disk"' EXIT
head -c 300k /dev/zero >"$disk/ballast"
stop wva-0
WVA_ARGS="--record-dir $disk --record-max-size 64Mi" start_wva wva-0 "$wva_port"
eventually 30 "recording to a disk with space for one minute: the number is 2" value_is "==" 2
disk_is_full() { df --output=avail "$disk" | tail -n 1 | { read -r free; echo "$free KiB free"; [ "$free" -le 40 ]; }; }
eventually 180 "the disk fills up" disk_is_full
head -c 1M /dev/zero >"$disk/more" 2>/dev/null || true
trust_wva
# lost: evaluations that were not recorded, because the disk was full or slow
lost() { echo $(($(counted "$wva_port" wva_recorded_evaluations_total 'result="failed"') + $(counted "$wva_port" wva_recorded_evaluations_total 'result="dropped"'))); }
lost_more() { is "$(lost) > $1"; }
before=$(lost)
throughout 20 "the disk is completely full: the number stays" value_is "==" 2
eventually 30 "lost evaluations are counted" lost_more "$before"
allow 3
set_load "$(calculate "3.3 * $pod_rps")"
eventually 90 "decisions continue: 3" value_is "==" 3
rm -f "$disk/more" "$disk/ballast"
grew() { find "$disk" -name '*.jsonl*' -newer "$CLUSTER_DIR/mark" -size +0 | grep .; }
touch "$CLUSTER_DIR/mark"
eventually 60 "the disk has space again: recording continues" grew
stop wva-0
actual=$("$WVA" replay "$disk"/*.jsonl 2>&1) || failed "the recording cannot be read: $(tail -n 3 <<<"$actual")"
passed "the recording can be read: $(tail -n 1 <<<"$actual")"
