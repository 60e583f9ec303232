#!/usr/bin/env bash
# small_disk.sh - a run on a small disk that is full, that another program fills, or that becomes read-only: it reports
# that, keeps everything that was complete, and with free space again resumes bit-identical to an uninterrupted run
#
#   test/program/small_disk.sh [build/cpu/train_gpt2]
#
# The disk is a tmpfs in a mount namespace of this script. Exit code 77: not permitted here.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "${1:-train_gpt2}")
if [ -z "${SMALL_DISK_INSIDE:-}" ]; then
    unshare -rm mount -t tmpfs none /mnt 2>/dev/null || { echo "skipped: mount namespaces are not permitted"; exit 77; }
    SMALL_DISK_INSIDE=1 exec unshare -rm "$0" "$program"
fi

work=$(mktemp -d)
disk=$work/disk
cleanup() {
    [ -z "${filler:-}" ] || kill "$filler" 2>/dev/null || true
    umount -l "$disk" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
mkdir "$disk"
mount -t tmpfs -o size=2500k none "$disk"
resize() { mount -o "remount,rw,size=$1" "$disk"; }

for ((i = 0; i < 600; ++i)); do echo "$i $((i * 7 % 100)) $((i * 13 % 100))"; done >"$work/text"
"${program%/*}/tokenize" -o "$work" --name count --document-start '^[0-9]*0 ' "$work/text" >/dev/null 2>&1
export OMP_WAIT_POLICY=passive
# train STATUS OUT FLAGS...: 12 steps, or $steps, of a model whose checkpoint takes 1.5 MiB. The exit code, in $status,
# must match the pattern STATUS; the output is in $work/said.
train() {
    local want=$1 out=$2
    shift 2
    status=0
    timeout -k 5 60 "$program" -i "$work/count_train_*.bin" -e custom:l=2,h=2,c=64,t=32 -b 2 -t 32 \
        $([ -e "$out/options.json" ] || echo -d 0 -l 6e-4 --dtype fp32 --shuffle=off --document-mask=off -u 0) \
        -x "${steps:-12}" -n 4 --threads 1 --tune=off -o "$out" "$@" >"$work/said" 2>&1 || status=$?
    # shellcheck disable=SC2053
    [[ $status == $want ]] || fail "a run in $out: exit code $status, not $want"
}
fail() {
    echo "FAILED: $*"
    tail -n 12 "$work/said"
    ls -la "$disk" "$disk"/*
    exit 1
}
says() { grep -qF "$1" "$work/said" || fail "not said: $1"; }
complete() { [ -e "$1/manifest.json" ] || fail "no $1"; }
# Every step of a log, without times; one that is there twice is an error.
steps() {
    jq -s 'reduce .[] as $event ({}; ($event.step | tostring) as $step |
        if $event.event == "resume" then with_entries(select((.key | tonumber) <= $event.step))
        elif $event.event != "step" then .
        elif has($step) then error("twice: " + $step)
        else .[$step] = [$event.loss, $event.grad_norm] end)' "$1"
}
same() {
    cmp "$1/step_00000012/model.safetensors" "$work/whole/step_00000012/model.safetensors" || fail "other weights"
    diff <(steps "$1/log.jsonl") <(steps "$work/whole/log.jsonl") || fail "another log"
}

train 0 "$work/whole"

# Space for one checkpoint: the failure of the second one is reported, that of the last one is an error.
train 1 "$disk/a"
says "note: no checkpoint of step 8: "
says "error: no checkpoint of step 12: "
[ "$(grep -c '^error: ' "$work/said")" = 1 ] || fail "more than one error"
complete "$disk/a/step_00000004"
[ "$(ls -A "$disk/a")" = $'log.jsonl\noptions.json\nstep_00000004' ] || fail "something was left"
resize 8m
train 0 "$disk/a" -y auto
says "resuming after step 4/12"
same "$disk/a"
rm -rf "$disk/a"

# Another program fills the disk as soon as a checkpoint is being written, and frees it later.
for try in 1 2 3; do
    (
        until ls -d "$disk/b/".step_*.partial >/dev/null 2>&1; do :; done
        exec dd if=/dev/zero of="$disk/filler" bs=4k 2>/dev/null
    ) &
    filler=$!
    train '[01]' "$disk/b"
    kill $filler 2>/dev/null || true
    wait $filler 2>/dev/null || true
    [ "$(grep -c '^error: ' "$work/said")" = $status ] || fail "not one error where it failed"
    rm -f "$disk/filler"
    train 0 "$disk/b" -y auto
    same "$disk/b"
    rm -rf "$disk/b"
done

# Read-only from now on: refused before the first step, and existing files stay.
steps=8 train 0 "$disk/c"
mount -o remount,ro "$disk"
train '[12]' "$disk/c" -y auto
says "Read-only file system"
! grep -q '^step ' "$work/said" || fail "a step on a read-only disk"
[ "$(grep -c '^error: ' "$work/said")" = 1 ] || fail "not one error"
resize 8m
train 0 "$disk/c" -y auto

# No space at all.
dd if=/dev/zero of="$disk/filler" bs=4k 2>/dev/null || true
train 1 "$disk/d"
says "No space left on device"
! grep -q '^step 2/' "$work/said" || fail "steps on a full disk"
echo "a disk that is full, fills up or is read-only: reported, and nothing lost"
