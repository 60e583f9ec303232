#!/usr/bin/env bash
# onebit_two_hosts.sh [GBIT_S [STEPS]] - step times and loss against time of a small model on two hosts joined by a slow
# link (limited_link.sh), with AdamW and with 1-bit Adam
#
# Defaults: 0.1 Gbit/s and 300 steps; 1-bit Adam freezes after a fifth of them. Prints a table and draws
# runs/onebit_two_hosts.png. Takes some ten minutes, most of them for AdamW.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
most_words 2 "$@"
cd "$(dirname "$(realpath "$0")")/../.."
rate=${1:-0.1} steps=${2:-300}
# shellcheck source=dev/bench/limited_link.sh
. dev/bench/limited_link.sh
rates "$rate"
[[ $steps =~ ^[0-9]+$ && $steps -ge 20 ]] || refuse "STEPS is \"$steps\"; expected 20 or more"
[ -e data/bible/bible_val_000000.bin ] || refuse "data/bible has no shards; run scripts/quickstart.sh first"
[ -x build/cpu/train_gpt2 ] || make -j"$(nproc)" DEVICE=cpu
make_hosts
limit "$rate"
mkdir -p runs
freeze=$((steps / 5))
PROGRAM=$(realpath build/cpu/train_gpt2)
export PROGRAM
for run in adamw 1-bit; do
    echo "running $run, $steps steps" >&2
    flags=()
    [ "$run" = adamw ] || flags=(--optimizer onebit-adam --onebit-freeze-step "$freeze")
    on_first_host scripts/run_two_nodes.sh -i "data/bible/bible_train_*.bin" -j "data/bible/bible_val_*.bin" \
        -e custom:l=4,h=4,c=256,t=128 -b 4 -t 128 -x "$steps" -v $((steps / 10)) --val-tokens 16384 --shuffle \
        --lr 1e-3 -u $((steps / 10)) --threads 1 -o "$work/$run" ${flags[@]+"${flags[@]}"} >"$work/$run.txt" 2>&1 ||
        { tail -n 5 "$work/$run.txt" >&2; exit 1; }
done

# median FILE FIRST LAST FIELD: median of a field over the steps after FIRST up to LAST
median() {
    jq -s "map(select(.event == \"step\" and .step > $2 and .step <= $3).$4) | sort | .[length / 2 | floor]" \
        "$work/$1/log.jsonl"
}
# row NAME RUN FIRST LAST
row() {
    printf '| %s | %.1f | %.0f | %.2f |\n' "$1" "$(median "$2" "$3" "$4" ms)" "$(median "$2" "$3" "$4" tokens_per_s)" \
        "$(median "$2" "$3" "$4" 'bytes_sent / 1e6')"
}
last() { jq -s 'map(select(.event == "val")) | last.loss' "$work/$1/log.jsonl"; }
minutes() { jq -s 'map(select(.event == "step").ms) | add / 60000' "$work/$1/log.jsonl"; }
echo "| $rate Gbit/s, two hosts | ms per step | tokens/s | MB sent |"
echo "|---|---|---|---|"
row AdamW adamw 2 "$steps"
row "1-bit Adam, warm-up" 1-bit 2 "$freeze"
row "1-bit Adam, compressed" 1-bit $((freeze + 1)) "$steps"
printf '\n%d steps: AdamW %.2f minutes to a validation loss of %.4f, 1-bit Adam %.2f minutes to %.4f\n' "$steps" \
    "$(minutes adamw)" "$(last adamw)" "$(minutes 1-bit)" "$(last 1-bit)"
dev/plot "$work"/{adamw,1-bit} --x hours -o runs/onebit_two_hosts.png >/dev/null
