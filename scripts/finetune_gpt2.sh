#!/usr/bin/env bash
# finetune_gpt2.sh MODEL TEXT ... [FLAG ...] - finetunes a saved GPT-2 model on your own text
#
#   scripts/finetune_gpt2.sh gpt2 novel.txt
#   PROMPT="To whom" scripts/finetune_gpt2.sh runs/gpt2_124M letters/*.txt -o runs/letters --epochs 2
#
# MODEL: a Hugging Face folder with config.json, model.safetensors and tokenizer, a checkpoint, or a run. TEXT: text
# files, one document each, of which the last tenth is held out; or files as for dev/tokenize (.jsonl with one document
# per line, .gz, .zst), of which every 20th document is held out. FLAG: flags of train_gpt2, which override the
# defaults of this script: three passes over the text, 16 sequences per update, learning rate 5e-5, decayed to 0.
#
# At the end it prints the held-out loss before and after finetuning, and a sample of the new model that begins with
# PROMPT. It writes shards, log and model to -o (default: runs/finetune). The same command resumes an interrupted run;
# other text needs another folder. RANKS, HOSTFILE, PROGRAM: scripts/README.md, "Recipes".
#
# To download GPT-2 (gpt2-medium, gpt2-large and gpt2-xl have the same files):
#
#   hf download openai-community/gpt2 config.json model.safetensors merges.txt tokenizer.json --local-dir gpt2
#
# Choice of the defaults: GPT (Radford et al. 2018) was fine-tuned for 3 passes with a peak learning rate of 6.25e-5,
# decayed to 0; nanoGPT's config/finetune_shakespeare.py uses a constant 3e-5, near the mean of ours. The warm-up is a
# tenth of the steps, because the Adam moments start at zero.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
# shellcheck source=scripts/help.sh
. "$here/help.sh"
# shellcheck source=scripts/recipe.sh
. "$here/recipe.sh"

model=${1:-}
[ -n "$model" ] || refuse "no model is given; expected a Hugging Face folder; see $(basename "$0") --help"
checkpoints=("$model"/step_????????) # of a run: its newest checkpoint
[ -f "$model/config.json" ] || [ ! -d "${checkpoints[-1]}" ] || model=${checkpoints[-1]}
if [ ! -f "$model/config.json" ]; then
    name=$(basename "$model") folder=$model
    case $name in gpt2 | gpt2-medium | gpt2-large | gpt2-xl) ;; *) name=gpt2 folder=gpt2 ;; esac
    quote "$folder"
    refuse "\"$model\" has no config.json; expected the folder of a saved GPT-2; download it: hf download" \
        "openai-community/$name config.json model.safetensors merges.txt tokenizer.json --local-dir $quoted"
fi
shift
texts=()
while [ $# -gt 0 ] && [[ $1 != -?* ]]; do
    [ -f "$1" ] || refuse "\"$1\" is not a file; expected text, or .jsonl"
    texts+=("$1")
    shift
done
[ ${#texts[@]} -gt 0 ] || refuse "no text is given; expected files of text, or .jsonl, after the model"
command -v jq >/dev/null || refuse "jq is missing; scripts/install_deps.sh installs it"
tools=$(dirname "$program")
for tool in tokenize generate; do
    [ -x "$tools/$tool" ] || refuse "$tools/$tool is missing; expected it next to the program; make builds it"
done
weights=("$model"/model*.safetensors)
[ -e "${weights[0]}" ] || refuse "\"$model\" has no model.safetensors; expected one; open" \
    "the model with transformers and save it with save_pretrained"
ids=$(jq -r '.vocab_size' "$model/config.json")
length=$(jq -r '.n_positions // .n_ctx // 1024' "$model/config.json")
case $ids in
    257) tokenizer=(--tokenizer bytes) ;;
    50257)
        tokenizer=(--tokenizer gpt2)
        for merges in "$model"/{tokenizer.json,merges.txt,vocab.bpe} "$here/../data/gpt2/vocab.bpe" ''; do
            [ ! -f "$merges" ] || break
        done
        [ -n "$merges" ] || refuse "\"$model\" has no tokenizer.json, merges.txt or vocab.bpe; expected GPT-2's" \
            "merges; scripts/get_gpt2_tokenizer.sh downloads them"
        tokenizer+=(--merges "$merges")
        ;;
    *) refuse "the model's vocabulary has $ids ids; expected GPT-2's 50257, or 257 for bytes" ;;
esac
take_dry_run "$@"
set -- "${words[@]}"
out=$(value output-dir "$@") || out=runs/finetune
[ -n "$out" ] || refuse "-o is empty; expected a folder for shards, log and model"

shared=${TMPDIR:-/tmp}
if [ -n "${HOSTFILE:-}" ]; then # the other machines can read the folder of the run
    shared=$(dirname "$out")
    mkdir -p "$shared"
fi
scratch=$(mktemp -d -p "$shared")
trap 'rm -rf "$scratch"' EXIT

# ---- invalid flags, before any text is read: the program checks flags before it looks for shards

choose_start
common=(-e "$model" -o "$out" -y auto --shuffle --dtype bf16 -z 1 --epochs 3 -l 5e-5 -k cosine -q 0)
none=$scratch/none takes=''
no_shards=(-i "$none" -j "$none")
[ $# = 0 ] || flag_of "${@: -1}"
[ -z "$takes" ] || no_shards=() # the last flag lacks its value: nothing follows it, so that the program reports that
said=$("${start[@]}" --dry-run "${common[@]}" "$@" "${no_shards[@]}" 2>&1) || true
error=$(grep -m 1 '^error: ' <<<"$said") || error=
[[ -z $error || $error == *"\"$none\""* ]] || { echo "$error" >&2 && exit 2; }

# ---- tokenize the text, every time because it may have changed, into a scratch folder until all checks have passed

documents=''
for text in "${texts[@]}"; do
    case $text in *.jsonl | *.ndjson | *.gz | *.zst) documents=yes ;; esac
done
is_there() { [ -e "$1" ]; } # whether a pattern matches a file
# tokenize ARGUMENTS...: dev/tokenize, without the names of the shards in its output, because the shards are moved later
tokenize() { "$tools/tokenize" --name text "${tokenizer[@]}" "$@" | sed 's/, [0-9]* shards\{0,1\}: .*//'; }
if [ -n "$documents" ]; then
    tokenize -o "$scratch/data" "${texts[@]}"
else
    mkdir "$scratch/train" "$scratch/val"
    for i in "${!texts[@]}"; do
        lines=$(grep -ac '' "${texts[i]}") || refuse "text \"${texts[i]}\" is empty; expected at least one line"
        head -n $((lines - lines / 10)) "${texts[i]}" >"$scratch/train/$i.txt"
        [ $((lines / 10)) = 0 ] || tail -n +$((lines - lines / 10 + 1)) "${texts[i]}" >"$scratch/val/$i.txt"
    done
    is_there "$scratch"/val/*.txt || refuse "no text has 10 lines; expected at least one that has," \
        "because the last tenth of its lines is held out"
    tokenize -o "$scratch/data/train" --hold-out 0 "$scratch"/train/*.txt | grep -v '^validation: '
    tokenize -o "$scratch/data/val" --hold-out 0 "$scratch"/val/*.txt | sed -n 's/^training:  /validation:/p'
    for shard in "$scratch"/data/val/*.bin; do
        mv "$shard" "$scratch/data/$(basename "$shard" | sed 's/_train_/_val_/')"
    done
    mv "$scratch"/data/train/*.bin "$scratch/data"
    rmdir "$scratch"/data/{train,val}
fi
is_there "$scratch"/data/text_val_*.bin || refuse "there are fewer than 20 documents, so none is" \
    "held out; expected more, or files of plain text"
data=$scratch/data
if [ -e "$out/log.jsonl" ] || is_there "$out"/step_????????; then
    diff -rq "$data" "$out/shards" >/dev/null 2>&1 ||
        refuse "\"$out\" has a run on other text; expected the same text and model to resume; pass another -o"
    data=$out/shards
fi

# ---- sequence length and batch size for the amount of text

tokens=$(wc -c "$data"/text_train_*.bin | awk '$2 != "total" { n += ($1 - 1024) / 2 } END { print n }')
[ "$length" -le 1024 ] || length=1024
while [ $((8 * length)) -gt "$tokens" ] && [ "$length" -gt 16 ]; do length=$((length / 2)); done
sequences=16
while [ $((10 * sequences * length)) -gt "$tokens" ] && [ $sequences -gt 1 ]; do sequences=$((sequences / 2)); done
sequences=$(((sequences + ranks - 1) / ranks * ranks)) batch=4
while [ $((sequences / ranks % batch)) != 0 ]; do batch=$((batch / 2)); done
pattern=$(escaped "$data") final=$(escaped "$out/shards")
all=(-i "$pattern/text_train_*.bin" -j "$pattern/text_val_*.bin" "${common[@]}" -b "$batch" -t "$length"
    -d $((sequences * length)) "$@")
[ "${#tokenizer[@]}" -lt 4 ] || all+=(--merges "$merges")
steps=$(value max-steps "$@") || steps=0
update=$(value total-batch-tokens "${all[@]}") passes=$(value epochs "${all[@]}")
is_whole "$steps" || { is_whole "$update" && is_whole "$passes" && steps=$((passes * tokens / update)); } || steps=0
value warmup-steps "$@" >/dev/null || all+=(-u $((steps / 10)))
value val-every "$@" >/dev/null || all+=(-v $((steps / 10 > 0 ? steps / 10 : 1)))

# ---- train_gpt2's plan, before writing to -o; its output names the final paths of the shards

named_in_out() {
    local said status=0
    said=$("$@" 2>&1) || status=$?
    said=${said//"$pattern"/"$final"}
    echo "${said//"$data"/"$out/shards"}"
    return $status
}
start=(named_in_out "${start[@]}") own_batch=$(value micro-batch "$@") || own_batch=
make_plan
start=("${start[@]:1}")
[ -z "$dry" ] || { echo "$plan" && exit; }
if [ "$data" != "$out/shards" ]; then
    mkdir -p "$out/shards"
    rm -f "$out"/shards/text_{train,val}_*.bin
    mv "$data"/*.bin "$out/shards"
fi

"${start[@]}" "${all[@]//"$pattern"/"$final"}"

# ---- the loss before and after, and a sample

echo
jq -r 'select(.event == "val") | "\(.loss) \(.step)"' "$out/log.jsonl" | awk '
    function counted(steps) { return steps (steps == 1 ? " step" : " steps") }
    NR == 1 { first = least = $1; at = $2 }
    $1 < least { least = $1; at = $2 }
    { last = $1; steps = $2 }
    END {
        if (NR == 0) { print "held-out loss: not measured because of -v 0"; exit }
        printf "held-out loss: %.4f before, %.4f after %s (perplexity %.2f and %.2f)\n", first, last, counted(steps),
            exp(first), exp(last)
        if (last - least >= 0.00005)
            printf "the lowest:    %.4f after %s: train no longer, with -x %d\n", least, counted(at), at
    }'
models=("$out"/step_????????)
echo "model:         ${models[-1]}"
echo "a sample:"
"$tools/generate" -e "$out" --prompt="${PROMPT:-}" -n 100
