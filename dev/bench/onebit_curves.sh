#!/usr/bin/env bash
# onebit_curves.sh [STEPS [SEEDS]] - the effect of 1-bit compression on the loss: validation losses of AdamW, of AdamW
# with a frozen second moment (--onebit-bits 32) and of 1-bit Adam, on 4 ranks and the King James Bible, with the same
# seeds
#
# The quickstart's model and recipe, four sequences per rank; defaults are 1000 steps and 3 seeds; both others freeze
# after 30 % of the steps. Prints a table and draws the first seed's runs in runs/onebit_curves.png. Exit code 1 if, for
# any seed, the last validation loss with 1-bit Adam is more than 0.02 above the frozen run's, or more than 0.03 above
# AdamW's.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
most_words 2 "$@"
cd "$(dirname "$(realpath "$0")")/../.."
steps=${1:-1000} seeds=${2:-3}
[[ $steps =~ ^[0-9]+$ && $seeds =~ ^[0-9]+$ && $steps -ge 50 && $seeds -ge 1 ]] ||
    refuse "expected numbers of steps, at least 50, and of seeds; not \"$*\""
[ -x build/cpu/train_gpt2 ] || make -j"$(nproc)" DEVICE=cpu
data=data/bible
[ -e $data/bible_val_000000.bin ] || refuse "$data has no shards; run scripts/quickstart.sh first"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mkdir -p runs
export OMP_WAIT_POLICY=passive RANKS=4 PROGRAM=build/cpu/train_gpt2
freeze=$((steps * 3 / 10))
onebit=(--optimizer onebit-adam --onebit-freeze-step "$freeze")
for ((seed = 1; seed <= seeds; seed++)); do
    for run in adamw frozen 1-bit; do
        flags=()
        [ $run = adamw ] || flags=("${onebit[@]}")
        [ $run = frozen ] && flags+=(--onebit-bits 32)
        scripts/run_one_node.sh -i "$data/bible_train_*.bin" -j "$data/bible_val_*.bin" \
            -e custom:l=4,h=4,c=128,t=128 -b 4 -t 128 -x "$steps" -v $((steps / 20)) --shuffle --lr 3e-3 \
            -u $((steps / 5)) -q 0 --threads 1 --seed $seed -o "$out/$run-$seed" "${flags[@]}" \
            >"$out/$run-$seed.txt" 2>&1 || { tail -n 5 "$out/$run-$seed.txt" >&2; exit 1; }
        jq -r 'select(.event == "val") | [.step, .loss] | @tsv' "$out/$run-$seed/log.jsonl" >"$out/$run-$seed.val"
    done
done

# last RUN SEED: last validation loss of the run
last() { tail -n 1 "$out/$1-$2.val" | cut -f 2; }
echo "| seed | AdamW | frozen | 1-bit | 1-bit - frozen | 1-bit - AdamW |"
echo "|---|---|---|---|---|---|"
for ((seed = 1; seed <= seeds; seed++)); do
    echo "$seed $(last adamw $seed) $(last frozen $seed) $(last 1-bit $seed)"
done | awk '{ a += $2; f += $3; o += $4; bad += $4 - $3 > 0.02 || $4 - $2 > 0.03
              printf "| %d | %.4f | %.4f | %.4f | %+.4f | %+.4f |\n", $1, $2, $3, $4, $4 - $3, $4 - $2 }
    END { printf "| mean | %.4f | %.4f | %.4f | %+.4f | %+.4f |\n", a / NR, f / NR, o / NR, (o - f) / NR, (o - a) / NR
          exit bad > 0 }' && verdict=0 || verdict=1

dev/plot "$out"/{adamw,frozen,1-bit}-1 -o runs/onebit_curves.png >/dev/null
exit "$verdict"
