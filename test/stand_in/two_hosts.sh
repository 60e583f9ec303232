#!/usr/bin/env bash
# two_hosts.sh - 1-bit Adam between nodes over NCCL: two ranks of the CUDA build, on stand-ins for its libraries, on
# each of two hosts (test/support/two_hosts.sh). Eager and late streams must give bit-identical weights, and all losses
# must match those of the CPU build over MPI
#
#   test/stand_in/two_hosts.sh [build/stand-in/train_gpt2 [build/cpu/train_gpt2]]
#
# Needs `tokenize` next to the CPU build. Exit code 77: namespaces are not permitted here.
set -euo pipefail
cd "$(dirname "$0")/../.."
gpu=$(realpath "${1:-build/stand-in/train_gpt2}")
cpu=$(realpath "${2:-build/cpu/train_gpt2}")

# shellcheck source=test/support/two_hosts.sh
. test/support/two_hosts.sh
make_hosts
printf '10.98.0.1 slots=2\n10.98.0.2 slots=2\n' >"$HOSTFILE"

for ((i = 0; i < 200; ++i)); do echo "$i $((i * 7 % 100)) $((i * 13 % 100))"; done >"$work/text"
"${cpu%/*}/tokenize" -o "$work" --name count --document-start '^[0-9]*0 ' "$work/text" >"$work/tokenized" 2>&1 ||
    { cat "$work/tokenized"; exit 1; }
steps=6 freeze=2
export XDG_CACHE_HOME=$work/cache  # ignores the user's autotuned algorithms

# train NAME PROGRAM FLAGS...: a run on both hosts; all steps after the freeze are compressed
train() {
    local name=$1 compressed
    PROGRAM=$2 on_first_host timeout -k 5 60 scripts/run_two_nodes.sh -i "$work/count_train_*.bin" \
        -e custom:l=1,h=2,c=32,t=32 -b 1 -t 32 -d 128 -x $steps -v 0 --threads 1 --lr 1e-2 --optimizer onebit-adam \
        --onebit-freeze-step $freeze --onebit-hierarchical --onebit-exclude ln_ -o "$work/$name" "${@:3}" \
        >"$work/$name.txt" 2>&1 || { cat "$work/$name.txt"; echo "the run \"$name\" failed"; exit 1; }
    compressed=$(grep -c '"event":"step".*"stage":"compressed"' "$work/$name/log.jsonl") || true
    if [ "$compressed" != $((steps - freeze)) ]; then
        cat "$work/$name.txt"
        echo "$name: $compressed steps were compressed; expected $((steps - freeze))"
        exit 1
    fi
    grep -o '"event":"step","step":[0-9]*,"epoch":[0-9]*,"loss":[^,]*' "$work/$name/log.jsonl" | sed 's/.*://' \
        >"$work/$name.losses"
}
train cpu "$cpu" --comm mpi
# Ranks on the other host have these variables, too: its agent passes the environment of the first host, unlike ssh.
export STAND_IN_GPUS=4
for schedule in eager late; do
    STAND_IN_SCHEDULE=$schedule STAND_IN_CALLS=$work/$schedule.calls train $schedule "$gpu" --comm nccl
    senders=$(cat "$work/$schedule.calls."* | grep -c '^ncclSend [1-9]') || true
    [ "$senders" = 4 ] || { echo "$schedule: $senders ranks with these variables sent over NCCL; expected 4"; exit 1; }
done

model=step_0000000$steps/model.safetensors
cmp "$work/eager/$model" "$work/late/$model" || { echo "weights depend on the schedule of the streams"; exit 1; }
for schedule in eager late; do
    paste "$work/cpu.losses" "$work/$schedule.losses" | awk -v steps=$steps -v name=$schedule '
        { difference = $1 > $2 ? $1 - $2 : $2 - $1; if (difference > most) most = difference }
        NF != 2 || difference > 1e-4 { print "loss " NR " on the CPU and in the run \"" name "\": " $0; failed = 1 }
        END {
            if (NR != steps) { print NR " losses of \"" name "\"; expected " steps; failed = 1 }
            if (!failed) print name ": losses differ from those on the CPU by at most " most
            exit failed
        }' || exit 1
done
echo "two hosts with compression over NCCL: bit-identical weights on both schedules"
