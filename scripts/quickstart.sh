#!/usr/bin/env bash
# quickstart.sh [TEXT.txt ...] - builds train_gpt2 and trains a small GPT-2 on real text, on any machine
#
# Without arguments the text is the King James Bible (Debian's package bible-kjv), one document per chapter; otherwise
# the given files, one document per paragraph. Every 20th document is held out for validation. Results: the data in
# data/, and runs/quickstart*/ with log.jsonl, plot.png and the model.
#
#   QUICKSTART_MINUTES=3     duration of the run, including validations, samples and the checkpoint. A short run before
#                            it measures the speed, which determines the number of steps; the run makes fewer steps if
#                            the machine becomes slower
#   QUICKSTART_DTYPE=fp32    or bf16
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
# shellcheck source=scripts/progress.sh
. "$(dirname "$(realpath "$0")")/progress.sh"
texts=()
for text in "$@"; do
    [ -f "$text" ] || {
        echo "error: \"$text\" is not a file; expected text files, or no argument for the King James Bible" >&2
        exit 2
    }
    texts+=("$(realpath "$text")")
done
cd "$(dirname "$(realpath "$0")")/.."
minutes=${QUICKSTART_MINUTES:-3}
dtype=${QUICKSTART_DTYPE:-fp32}
[[ $minutes =~ ^[0-9]{0,4}\.?[0-9]+$ ]] &&
    awk -v minutes="$minutes" 'BEGIN { exit !(minutes > 0 && minutes < 10000) }' ||
    { echo "error: QUICKSTART_MINUTES is \"$minutes\"; expected a number of minutes, such as 3 or 0.5" >&2; exit 2; }
[[ $dtype =~ ^(fp32|bf16)$ ]] ||
    { echo "error: QUICKSTART_DTYPE is \"$dtype\"; expected fp32 or bf16" >&2; exit 2; }

scripts/install_deps.sh
echo "building"
build_with_progress build.log make -j"$(nproc)" train_gpt2 dev/tokenize || {
    tail -n 30 build.log >&2
    echo "error: the build failed; its output is in build.log" >&2
    exit 1
}

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
if [ ${#texts[@]} -eq 0 ]; then
    data=data/bible
    if [ ! -e $data/bible_val_000000.bin ]; then
        mkdir -p $data
        bible -f gen1:1-rev22:21 >$data/bible.txt
        dev/tokenize -o $data --name bible --document-key '^([^:]+):' $data/bible.txt
    fi
    shards=$data/bible
else
    data=data/text-$(cat "${texts[@]}" | sha256sum | cut -c 1-12)  # kept, so that the run can be resumed
    if [ ! -e "$data/text_val_000000.bin" ]; then
        dev/tokenize -o "$data" --name text --document-start '^[[:space:]]*$' "${texts[@]}"
    fi
    shards=$data/text
fi

out=runs/quickstart
for ((i = 2; ; i++)); do
    [ -e $out ] || break
    out=runs/quickstart-$i
done
[ $out = runs/quickstart ] || echo "earlier runs are kept; this run writes to $out"

batch=8 length=128
train=(./train_gpt2 -i "${shards}_train_*.bin" -j "${shards}_val_*.bin" -e custom:l=4,h=4,c=128,t=$length
    -b $batch -t $length --dtype "$dtype" --shuffle --samples 2 -g 300)
[ ${#texts[@]} -gt 0 ] || train+=(--prompt $'Ps23:1 The LORD is')
recipe=(--lr 3e-3 --final-lr-fraction 0 --weight-decay 0.1 --beta1 0.9 --beta2 0.95)

echo "measuring the speed of this machine"
probe=$temporary/probe
mkdir "$probe"
"${train[@]}" -x 60 -v 60 --val-tokens 16384 -s 60 --max-minutes 0.5 -o "$probe/run" >"$probe/out" ||
    { cat "$probe/out"; exit 1; }
# tokens of all validation shards: a header of 1024 bytes, then 2 bytes per token
tokens=$(wc -c "${shards}"_val_*.bin | awk '$2 != "total" { n += ($1 - 1024) / 2 } END { print n }')
{ read -r -a plan && read -r summary; } < <(jq -rs --argjson minutes "$(awk -v m="$minutes" 'BEGIN { print m + 0 }')" \
    --argjson tokens "$tokens" -f scripts/quickstart_plan.jq "$probe/run/log.jsonl")
echo "$summary"

"${train[@]}" "${recipe[@]}" "${plan[@]}" -o "$out" |
    # ignores signals, so that it prints the last lines of an interrupted run
    (trap '' INT TERM HUP; exec awk '
        /^step +[|]/ && headers++ { next }
        !/^step .*[|] +[0-9.]+ +[0-9.]+e[-+]/ || n++ % 50 == 0 || systime() >= last + 10 {
            print; fflush()
            last = systime()
        }')

dev/plot "$out" -o "$out/plot.png" >/dev/null
loss=$(jq -s 'map(select(.event == "val")) | last.loss' "$out/log.jsonl")
echo
echo "validation loss: $(printf '%.4f' "$loss") nats per byte"
echo "log:             $out/log.jsonl"
echo "plot:            $out/plot.png"
echo "model:           $(ls -d "$out"/step_*)   (transformers' GPT2LMHeadModel.from_pretrained opens it)"
echo "sample from it:  make dev/generate && dev/generate -e $out"
