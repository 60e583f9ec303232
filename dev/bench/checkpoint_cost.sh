#!/usr/bin/env bash
# checkpoint_cost.sh [EVERY [SAVES]] - time that a checkpoint costs a 124M run on this machine, in seconds and as a
# share of 50 steps
#
# One run of EVERY * SAVES steps, with EVERY (default 12) steps between two checkpoints. A row adds the two costs of a
# checkpoint: how long training waited for it (`waited_ms` in the log, the copy to host memory), and how much longer the
# first half of the following steps took, which overlap with the write, than the same number of median steps of the
# second half. So a machine whose speed varies from minute to minute has little effect. The checkpoints go to a folder
# in runs/ and are deleted. Needs a CPU build and an otherwise idle machine.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
most_words 2 "$@"
whole_numbers "$@"
cd "$(dirname "$0")/../.."
bin=build/cpu/train_gpt2
every=${1:-12} saves=${2:-8}
[ -x $bin ] || refuse "no $bin; run make DEVICE=cpu all tools first"
mkdir -p runs
work=$(mktemp -d runs/checkpoint_cost.XXXXXX)
trap 'rm -rf "$work"' EXIT
build/cpu/random_shard "$work/train.bin" 2000000 >/dev/null
$bin -i "$work/train.bin" -e d12 -b 1 -t 256 -x $((every * (saves + 1))) -n "$every" --keep-checkpoints 1 \
    -o "$work/run" >"$work/out" 2>&1 || { tail -n 5 "$work/out" >&2; exit 1; }
python3 - "$work/run/log.jsonl" "$every" "$saves" <<'PYTHON'
import json, statistics, sys
every, saves = int(sys.argv[2]), int(sys.argv[3])
events = [json.loads(line) for line in open(sys.argv[1])]
ms = [event["ms"] for event in events if event["event"] == "step"]
waited = {event["step"]: event["waited_ms"] for event in events if event["event"] == "checkpoint"}
print("| checkpoint | median step | waited | slower steps | sum | of 50 steps |\n|---|---|---|---|---|---|")
rows = []
for save in range(1, saves + 1):
    after = ms[save * every:(save + 1) * every]
    half = len(after) // 2
    step = statistics.median(after[half:])
    slower = sum(after[:half]) - half * step
    cost = waited[save * every] + slower
    rows.append((step, waited[save * every], slower, cost, 100 * cost / (50 * step)))
rows.append([statistics.median(column) for column in zip(*rows)])
for number, row in enumerate(rows, 1):
    print("| %s | %.0f ms | %.0f ms | %.0f ms | %.0f ms | %.2f %% |" % (number if number <= saves else "median", *row))
PYTHON
