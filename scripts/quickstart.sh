#!/usr/bin/env bash
# quickstart.sh [TEXT.txt ...] - builds train_gpt2 and trains a small GPT-2 on real text, whatever the machine
#
# Without arguments the text is the King James Bible (Debian's package bible-kjv), chapter by chapter; with arguments
# these files, paragraph by paragraph. Every 20th document is held out for validation. Results: runs/quickstart*/ with
# log.jsonl, plot.png and the model.
#
#   QUICKSTART_MINUTES=3     how long to train: the number of steps is chosen to fit, so that slow machines finish too
#   QUICKSTART_DTYPE=fp32    or bf16
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
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

scripts/install_deps.sh
echo "building"
make -j"$(nproc)" >build.log 2>&1 || {
    tail -n 30 build.log >&2
    echo "error: the build failed; all of its output is in build.log" >&2
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
    data=$temporary/data
    mkdir "$data"
    dev/tokenize -o "$data" --name text --document-start '^[[:space:]]*$' "${texts[@]}"
    shards=$data/text
fi

out=runs/quickstart
for ((i = 2; ; i++)); do
    [ -e $out ] || break
    out=runs/quickstart-$i
done
[ $out = runs/quickstart ] || echo "an earlier run is kept as it is; this one goes to $out"

batch=8 length=128
train=(./train_gpt2 -i "${shards}_train_*.bin" -j "${shards}_val_*.bin" -e custom:l=4,h=4,c=128,t=$length
    -b $batch -t $length --dtype "$dtype" --shuffle)
recipe=(--lr 3e-3 --warmup-steps 200 --final-lr-fraction 0 --weight-decay 0.1 --beta1 0.9 --beta2 0.95)

echo "measuring the speed of this machine"
probe=$temporary/probe
mkdir "$probe"
"${train[@]}" -x 60 -v 60 --val-tokens 16384 -o "$probe/run" >"$probe/out" || { cat "$probe/out"; exit 1; }
ms=$(jq -s 'map(select(.event == "step").ms) | sort | .[length / 2 | floor]' "$probe/run/log.jsonl")
# of all validation text: shards have a header of 1024 bytes and two bytes a token
val_ms=$(jq -s --argjson tokens "$(wc -c "${shards}"_val_*.bin | awk '$2 != "total" { n += ($1 - 1024) / 2 }
    END { print n }')" 'map(select(.event == "val")) | last | .ms / .valid_tokens * $tokens' "$probe/run/log.jsonl")
steps=$(awk -v ms="$ms" -v minutes="$minutes" 'BEGIN {
    steps = int(minutes * 60000 / ms)
    print steps < 20 ? 20 : steps
}')
warmup=$((steps < 800 ? steps / 4 : 200))
recipe[3]=$warmup
# Ten points of the curve, fewer where they would take more than a third of the time that training does; the last and
# one before the first step always.
points=$(awk -v ms="$val_ms" -v minutes="$minutes" 'BEGIN {
    points = int(minutes * 20000 / ms)
    print (points < 1 ? 1 : points > 10 ? 10 : points)
}')
val_every=$(((steps + points - 1) / points))
printf '%.1f ms a step: %s steps fill %s minutes; validation takes %.1f minutes beside them\n' "$ms" "$steps" \
    "$minutes" "$(awk -v ms="$val_ms" -v points="$points" 'BEGIN { print ms * (points + 1) / 60000 }')"

"${train[@]}" "${recipe[@]}" -x "$steps" -v $val_every --val-tokens 1000000000 -s "$steps" --samples 2 -g 300 \
    --prompt $'Ps23:1 The LORD is' -o "$out" |
    # what ends the run must not end this before the run has said what it saved
    (trap '' INT TERM HUP; exec awk '!/^step .* loss / || /validation/ || ++n % 50 == 1 { print; fflush() }')

dev/plot "$out" -o "$out/plot.png" >/dev/null
loss=$(jq -s 'map(select(.event == "val")) | last.loss' "$out/log.jsonl")
echo
echo "validation loss: $(printf '%.4f' "$loss") nats a byte"
echo "log:             $out/log.jsonl"
echo "plot:            $out/plot.png"
echo "model:           $(ls -d "$out"/step_*)   (transformers' GPT2LMHeadModel.from_pretrained opens it)"
