#!/usr/bin/env bash
# quickstart.sh [TEXT.txt ...] - builds train_gpt2 and trains a small GPT-2 on real text, on any machine
#
# Without arguments the text is the King James Bible (Debian's package bible-kjv), one document per chapter; otherwise
# the given files, one document per paragraph or line of JSON. Every 20th document is held out for validation, or, if
# there are fewer than 200, the last tenth of every file. Results: the data in data/bible, or data/NAME of NAME.txt; and
# runs/quickstart*/ with log.jsonl, plot.png (if matplotlib is installed) and the model.
#
#   QUICKSTART_MINUTES=3     duration of the run, including validations; samples and the checkpoint take little more
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
# shellcheck source=scripts/progress.sh
. "$(dirname "$(realpath "$0")")/progress.sh"
texts=()
for text in "$@"; do
    [ -f "$text" ] || refuse "\"$text\" is not a file; expected text files, or no argument for the King James Bible"
    texts+=("$(realpath -- "$text")")
done
cd "$(dirname "$(realpath "$0")")/.."
minutes=${QUICKSTART_MINUTES:-3}
[[ $minutes =~ ^[0-9]{0,4}\.?[0-9]+$ ]] &&
    awk -v minutes="$minutes" 'BEGIN { exit !(minutes > 0 && minutes < 10000) }' ||
    refuse "QUICKSTART_MINUTES is \"$minutes\"; expected a number of minutes, such as 3 or 0.5"

needs=(build)
if [ ${#texts[@]} -eq 0 ]; then
    if command -v apt-get >/dev/null; then
        needs=()
    elif [ ! -e data/bible/bible_val_000000.bin ] && ! command -v bible >/dev/null; then
        refuse "the program bible, with the King James Bible, is missing, and this system has no apt-get;" \
            "expected it, or a text: scripts/quickstart.sh my.txt"
    fi
fi
scripts/install_deps.sh "${needs[@]}"
exec {lock}<scripts  # one quickstart at a time builds and writes data
flock -n $lock || { echo "waiting for another quickstart to build and write its data" && flock $lock; }
echo "building"
build=(make -j"$(nproc)" train_gpt2 dev/tokenize dev/generate) begun=$(date +%s)
# Exact for a first build. For an incremental build it is an upper bound: make decides during the build which files are
# up to date.
files=$("${build[@]}" --dry-run 2>/dev/null | grep -cE -- ' -c .* -o [^ ]+\.o( |$)') || true
print_built() {
    [ "$files" -eq 0 ] && return
    local built
    built=$(find build -name '*.o' -newermt "@$begun" 2>/dev/null | wc -l)
    echo "built $built of $files files$([ "$built" -eq 0 ] || [ "$built" -ge "$files" ] ||
        echo ", $(((built * 60 + seconds / 2) / seconds)) per minute," \
            "about $((((files - built) * seconds / built + 59) / 60)) min left")"
}
with_progress print_built build.log "${build[@]}" || {
    tail -n 30 build.log >&2
    give_up "the build failed; its output is in build.log"
}

if [ ${#texts[@]} -eq 0 ]; then
    data=data/bible
    if [ ! -e $data/bible_val_000000.bin ]; then
        make_folder "the folder of the data" $data
        rm -f $data/bible_train_*.bin  # of a quickstart that was killed
        bible -f gen1:1-rev22:21 >$data/bible.txt
        dev/tokenize -o $data --name bible --document-key '^([^:]+):' $data/bible.txt
    fi
    shards=$data/bible
    words='Ps23:1 The LORD is'
else
    name=$(basename "${texts[0]}")
    name=$(printf %s "${name%.*}" | tr -cs A-Za-z0-9_ _)
    name=${name:-text}
    sum=$(cat "${texts[@]}" | sha256sum)
    data=data/$name
    for ((i = 2; ; i++)); do  # the first folder that is new or has these texts
        if [ "$data" != data/bible ]; then
            [ -e "$data" ] || break
            [ "$(cat "$data/text.sha256" 2>/dev/null)" != "$sum" ] || break
        fi
        data=data/$name-$i
    done
    if [ ! -e "$data/${name}_val_000000.bin" ]; then
        rm -f "$data/$name"_train_*.bin
        rule=(--document-start '^[[:space:]]*$')
        for text in "${texts[@],,}"; do  # a line of JSON is a document
            [[ ! $text =~ \.(json|jsonl|ndjson)(\.gz|\.zst)?$ ]] || rule=()
        done
        dev/tokenize -o "$data" --name "$name" ${rule[@]+"${rule[@]}"} "${texts[@]}"
        echo "$sum" >"$data/text.sha256"
    fi
    shards=$data/$name
    # Samples continue the first words of the last line. Commands of this pipe may fail without harm.
    [[ ! ${texts[-1],,} =~ \.(json|jsonl|ndjson|gz|zst)$ ]] || texts[-1]=/dev/null
    words=$(tail -c 100000 -- "${texts[-1]}" | tac | awk '
        NF && length > 20 { for (i = 1; i <= 4 && i <= NF; i++) printf "%s", (i > 1 ? " " : "") $i; exit }' |
        head -c 60 | iconv -c -f UTF-8 -t UTF-8) || true
fi

exec {lock}<&-
out=runs/quickstart
make_folder "the folder of the runs" runs
for ((i = 2; ; i++)); do
    ! mkdir $out 2>/dev/null || break
    [ -e $out ] || mkdir $out  # says why not
    out=runs/quickstart-$i
done
trap 'rmdir "$out" 2>/dev/null || true' EXIT  # if the run does not start
[ $out = runs/quickstart ] || echo "earlier runs are kept; this run writes to $out"

# The run chooses the rest: auto is the default of model, batch, rate and schedule.
train=(./train_gpt2 -i "${shards}_train_*.bin" -j "${shards}_val_*.bin" --max-minutes "$minutes" -o "$out"
    -s 1000000000 --samples 2 -g 100)
[ -z "$words" ] || train+=(--prompt "$words")

"${train[@]}"

plot="$out/plot.png"
if PYTHONPATH=build/python python3 -c "import matplotlib" 2>/dev/null; then
    dev/plot "$out" -o "$out/plot.png" >/dev/null
else
    plot="needs python3 and matplotlib, which scripts/install_deps.sh installs"
fi
bits=$(sed -n '/"event":"val"/s/.*"bits_per_byte":\([^,]*\),.*/\1/p' "$out/log.jsonl" | tail -n 1)
echo
echo "validation loss: $(awk -v bits="$bits" 'BEGIN { printf "%.4f nats per byte (%.4f bits)", log(2) * bits, bits }')"
echo "log:             $out/log.jsonl"
echo "plot:            $plot"
echo "model:           $(ls -d "$out"/step_*)   (transformers' GPT2LMHeadModel.from_pretrained opens it)"
echo
echo "next: plot the run, generate text, train twice as long"
echo "    dev/plot $out"
echo "    dev/generate -e $out${words:+ --prompt ${words@Q}}"
twice=$(awk -v minutes="$minutes" 'BEGIN { print 2 * minutes }')
echo "    ./train_gpt2 -o $out -y auto --epochs auto --max-minutes $twice"
