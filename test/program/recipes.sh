#!/usr/bin/env bash
# recipes.sh - the scripts that repeat a published run: the plan of the real model, 20 steps of a tiny one, errors;
# finetuning of a Hugging Face model on text; llm.c's command in scripts/COMING_FROM.md
#
#   test/program/recipes.sh [BUILD]     with the programs in BUILD (build/cpu)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
build=$(realpath -m "${1:-build/cpu}")
export PROGRAM=$build/train_gpt2 OMP_NUM_THREADS=1
unset RANKS HOSTFILE DATA MEASURE CUDA_VISIBLE_DEVICES
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export XDG_CACHE_HOME=$scratch/cache # for autotuning results
failed=0
fail() {
    echo "$1"
    failed=1
}
# says WHAT SAID EXPECTED...: the text SAID contains each EXPECTED
says() {
    local what=$1 said=$2 expected
    shift 2
    for expected; do
        [[ $said == *"$expected"* ]] || { fail "$what lacks \"$expected\": $said"; return; }
    done
}
# refused WHAT EXPECTED COMMAND...: exit code 2, one line
refused() {
    local what=$1 expected=$2 said status=0
    shift 2
    said=$("$@" 2>&1) || status=$?
    [ "$status, $(wc -l <<<"$said") line" = "2, 1 line" ] || fail "$what: exit code $status: $said"
    says "$what" "$said" "error: " "$expected"
}

# An nvidia-smi that lists the GPUs in GPUS, and a program that reports a CUDA build.
mkdir "$scratch/bin"
# shellcheck disable=SC2016 # these are for the scripts written here
{
    printf '#!/bin/sh\nfor i in $GPUS; do echo "GPU $i"; done\n' >"$scratch/bin/nvidia-smi"
    printf '#!/bin/sh\n[ "$1" != --version ] || exec echo "train_gpt2 0, device cuda"\nexec "%s" "$@"\n' "$PROGRAM" \
        >"$scratch/bin/train_gpt2"
}
chmod +x "$scratch"/bin/*
export PATH=$scratch/bin:$PATH GPUS=''

# A folder of data with names as llm.c has them: random tokens of GPT-2's vocabulary.
for prefix in fineweb/fineweb fineweb100B/fineweb edu_fineweb100B/edu_fineweb; do
    mkdir -p "$scratch/data/$(dirname $prefix)"
    "$build/random_shard" "$scratch/data/${prefix}_train_000001.bin" 1050000 &&
        "$build/random_shard" "$scratch/data/${prefix}_val_000000.bin" 600 || exit 1
done
# One example of HellaSwag with a context of two tokens and four endings of one, after a header as llm.c's.
mkdir "$scratch/data/hellaswag"
python3 -c 'import struct, sys
sys.stdout.buffer.write(struct.pack("<4i", 20240522, 1, 1, 32).ljust(1024, b"\0") +
    struct.pack("<16H", 65535, 32, 0, 1, 4, 2, 11, 12, 1, 5, 1, 6, 1, 7, 1, 8))' \
    >"$scratch/data/hellaswag/hellaswag_val.bin"
export DATA=$scratch/data
out=(-o "$scratch/run")
tiny=(-e "custom:l=1,h=1,c=16,t=32" -b 4 -t 32 -d 128 -x 20 -g 8 "${out[@]}")

# of_log FOLDER FILTER: the output of a jq filter on all events of its log
of_log() { jq -s "$2" "$scratch/$1/log.jsonl"; }

# recipe NAME STEPS OPTIONS...: the real model's plan, and 20 steps of a tiny model with the other flags; the jq
# expressions OPTIONS must be true for its options
recipe() {
    local name=$1 steps=$2 said option
    shift 2
    said=$(MEASURE=no "scripts/run_$name.sh" --dry-run --ignore-memory-plan -o "$scratch/$name" 2>&1) ||
        fail "the plan of $name: exit code $?"
    says "the plan of $name" "$said" "training     $steps" "published    " "https://github.com/karpathy/llm.c" \
        "memory plan" "$GB GB each"
    [ ! -e "$scratch/$name" ] || fail "the plan of $name left something behind"
    said=$(MEASURE=no "scripts/run_$name.sh" "${tiny[@]}" -o "$scratch/$name" 2>&1) || fail "$name: exit code $?: $said"
    says "$name" "$said" "note: -u 2 instead of 700" "20 steps of 128 tokens, in total 2,560: less than 0.01 passes" \
        "MB each"
    for option in '.dtype == "bf16"' '."weight-decay" == 0.1' .shuffle '."zero-stage" == 1' '.resume == "auto"' "$@"; do
        [ "$(of_log "$name" "first.options | $option")" = true ] || fail "the options of $name: not so: $option"
    done
    [ "$(of_log "$name" 'map(.event) | [indices("step", "val", "hellaswag") | length]')" = "$(jq -n '[20, 2, 1]')" ] ||
        fail "the log of $name has not 20 steps, validation before and after them, and HellaSwag"
    [ -e "$scratch/$name/step_00000020/model.safetensors" ] || fail "$name saved no model"
}
GB=1.49 recipe gpt2_124M "18,865 steps of 524,288 tokens, in total 9.891 billion: " \
    '.lr == 6e-4 and ."final-lr-fraction" == 0' '."checkpoint-every" == 5000'
GB=4.26 recipe gpt2_350M "60,000 steps of 524,288 tokens" '.lr == 3e-4 and ."final-lr-fraction" == 0'
GB=9.29 recipe gpt2_774M "286,102 steps of 524,288 tokens" '.lr == 2.5e-4 and ."final-lr-fraction" == 0'
GB=18.7 recipe gpt2_1558M "32,000 steps of 1,048,576 tokens" '.lr == 6e-4 and ."final-lr-fraction" == 0.1'
GB=1.5 recipe gpt3_125M "572,204 steps of 524,288 tokens" '.lr == 6e-4 and ."final-lr-fraction" == 0.1' \
    '."skip-loss-z" == 7 and ."skip-norm-z" == 7' '."keep-checkpoints" == 5 and ."major-every" == 50000'

script=scripts/run_gpt2_124M.sh
# The same command resumes, with the time per step of its log. Without a log three steps are timed.
said=$($script "${tiny[@]}" -x 21 -o "$scratch/gpt2_124M" 2>&1) || fail "resuming: exit code $?: $said"
says "resuming" "$said" "for 1 step," "the median of its last steps"
[ "$(of_log gpt2_124M 'map(select(.event == "step")) | length')" = 21 ] || fail "the run did not resume"
says "a timed plan" "$($script "${tiny[@]}" --dry-run 2>&1)" "minutes for 20 steps" "from three steps of 32 tokens"
says "two GPUs" "$(GPUS="0 1" PROGRAM=$scratch/bin/train_gpt2 MEASURE=no $script "${tiny[@]}" -b 2 --dry-run 2>&1)" \
    "ranks        2, on GPUs" run_one_node.sh
says "a build for CPUs" "$(GPUS="0 1" MEASURE=no $script "${tiny[@]}" --dry-run 2>&1)" "there are 2 GPUs; make" \
    "ranks        1, on this CPU"
# HellaSwag follows validation; published numbers are compared with this run; a shell accepts the printed command.
options_of() { sed -n '/^options:/,/^training data:/p' <<<"$1"; }
plan=$(MEASURE=no $script "${tiny[@]}" -v 100 --val-every=5 -s3 --prompt "it's \$5" -o "$scratch/a run" \
    --dry-run 2>&1) || fail "a plan: exit code $?: $plan"
says "a plan" "$plan" "--hellaswag-every=5" "dev/plot '$scratch/a run' --reference 124M"
command=$(sed '1,/^  command$/d' <<<"$plan")
says "the options of the printed command" "$(options_of "$(eval "$command --dry-run" 2>&1)")" "$(options_of "$plan")"
says "the printed command" "$command" " --shuffle " " -e custom:l=1,h=1,c=16,t=32 " \
    "'$DATA/fineweb/fineweb_train_*.bin'"
for flag in -d -n -b -e -o --val-every; do
    [ "$(grep -oE -- " ${flag}[ =]" <<<"$command" | wc -l)" = 1 ] || fail "$flag is not there once: $command"
done
[[ $command != *" -v "* ]] || fail "-v is there, which --val-every overrides: $command"
[ -z "$(awk 'length > 100 && NF > 3' <<<"$command")" ] || fail "lines of more than 100 columns: $command"
# Values joined by =, also to a letter; switches with a value; a flag without its value is reported as it was passed.
plan=$(MEASURE=no $script "${tiny[@]}" -x=3 -d=256 -o="$scratch/joined" --shuffle false --pad-last false \
    --dry-run=true 2>&1) || fail "a plan of joined values: exit code $?: $plan"
says "a plan of joined values" "$plan" "checkpoints  in $scratch/joined," "3 steps of 256 tokens" " -x=3 " \
    " --shuffle false " " --pad-last false"
for flag in --dry-run=on "--dry-run true" "--dry-run 1" "--dry-run=false --dry-run"; do
    read -ra words <<<"$flag"
    said=$(MEASURE=no $script "${tiny[@]}" -o "$scratch/joined" "${words[@]}" 2>&1) || fail "$flag: exit code $?: $said"
    says "$flag" "$said" "memory plan" "  command"
    [ ! -e "$scratch/joined" ] || fail "$flag has trained"
done
said=$(MEASURE=no $script "${tiny[@]}" -x=1 -o="$scratch/joined" --dry-run --dry-run false 2>&1) ||
    fail "--dry-run false: exit code $?: $said"
[ -e "$scratch/joined/step_00000001" ] || fail "--dry-run false has not trained: $said"
refused "a wrong answer" '--dry-run is "maybe"; expected' $script "${out[@]}" --dry-run=maybe
for flag in -b --lr; do
    refused "a forgotten value of $flag" "is missing an argument" $script -e d6 "${out[@]}" $flag
done
says "a forgotten value, and a warm-up chosen here" "$($script "${tiny[@]}" -b 2>&1)" "note: -u 2 instead of 700" \
    "is missing an argument"
# Brackets in the name of a folder are not a pattern.
cp -r "$DATA" "$scratch/data [a] {b}"
plan=$(DATA="$scratch/data [a] {b}" MEASURE=no $script "${tiny[@]}" --dry-run 2>&1) || fail "brackets: $plan"
says "a folder with brackets" "$plan" "1 shard, 1,050,000 tokens" "HellaSwag: 1 example"
says "its printed command" "$(eval "$(sed '1,/^  command$/d' <<<"$plan") --dry-run" 2>&1)" "1 shard, 1,050,000 tokens"
[[ $(MEASURE=no $script "${tiny[@]}" -v 0 --dry-run 2>&1) != *hellaswag_val* ]] ||
    fail "HellaSwag without validations"
# 64 sequences of this model take 440 GB, one takes 7.
says "a batch for this machine" "$(MEASURE=no $script -e custom:l=3072,h=1,c=32,t=1024 -d 65536 "${out[@]}" \
    --dry-run 2>&1)" "instead of 64, to fit in memory"

refused "no data" "run dev/data/" env DATA="$scratch/none" $script
refused "no validation data" "or pass others with -j" $script -j "$scratch/none_*.bin"
refused "no program" "build it with make" env PROGRAM="$scratch/none" $script
refused "a batch that does not divide" "--total-batch-tokens is 524288; expected" $script -b 3 -t 32 "${out[@]}"
refused "a word that is no flag" "word" $script "${out[@]}" word
seq 200 | sed 's/$/ birds sit in a tree/' >"$scratch/birds.txt"
"$build/tokenize" -o "$scratch/bytes" --name b --document-start . "$scratch/birds.txt" >"$scratch/out"
bytes=(-i "$scratch/bytes/b_train_*.bin" -j "$scratch/bytes/b_val_*.bin")
refused "shards of bytes" "a vocabulary of 257; expected GPT-2's 50257" $script "${bytes[@]}" \
    -t 32 -d 128 "${out[@]}"

# ---- finetuning

"$PROGRAM" "${bytes[@]}" -e custom:l=1,h=2,c=32,t=64 -b 4 -t 64 -x 60 -l 1e-2 -v 0 -o "$scratch/bytes_model" \
    >"$scratch/out" 2>&1 || fail "no model of bytes: $(cat "$scratch/out")"
finetune=scripts/finetune_gpt2.sh
model=$scratch/bytes_model # a run folder: its checkpoint is used
seq 300 | sed 's/$/ fish swim in a lake/' >"$scratch/fish.txt"
said=$(PROMPT="7 fish" $finetune "$model" "$scratch/fish.txt" -o "$scratch/fish" -l 1e-3 -u 3 2>&1) ||
    fail "finetuning: exit code $?: $said"
says "finetuning" "$said" "training:   1 document, " "held-out loss: " "step_00000" "7 fish"
read -r before after < <(sed -n 's/^held-out loss: \([0-9.]*\) before, \([0-9.]*\) after.*/\1 \2/p' <<<"$said")
awk -v before="$before" -v after="$after" 'BEGIN { exit !(after < 0.9 * before) }' ||
    fail "finetuning took the held-out loss from $before to $after"
[ "$(of_log fish 'map(select(.event == "val")) | length')" = 14 ] || fail "-u N turns off validation on the way"
# An existing run is resumed, or stays unchanged.
# shellcheck disable=SC2317 # refused calls it
quietly() { "$@" >/dev/null; }
contents() { (cd "$scratch/$1" && find . -type f -exec sha256sum {} + | sort); }
before=$(contents fish)
refused "finetuning on other text" "\"$scratch/fish\" has a run on other text; expected the same text and model" \
    quietly $finetune "$model" "$scratch/birds.txt" -o "$scratch/fish" -l 1e-3 -u 3
[ "$(contents fish)" = "$before" ] || fail "a refused run has changed the one that was there"
said=$($finetune "$model" "$scratch/fish.txt" -o "$scratch/fish" -l 1e-3 -u 3 2>&1) ||
    fail "resuming: exit code $?: $said"
says "finetuning again" "$said" "resuming after step"
# The last line of a short text, a value that looks like a flag, a loss that was not measured.
mkdir "$scratch/a [b]"
cp "$scratch"/bytes_model/step_*/* "$scratch/a [b]"
printf 'one\nTHE LAST LINE' >"$scratch/short.txt"
said=$($finetune "$scratch/a [b]" "$scratch/fish.txt" "$scratch/short.txt" -o "$scratch/fish [4]" -x 2 -v 0 \
    --prompt "-other" --dry-run false 2>&1) || fail "finetuning on a short text: exit code $?: $said"
says "finetuning without validation" "$said" "held-out loss: not measured"
[ -e "$scratch/fish [4]/step_00000002" ] || fail "--dry-run false has not trained: $said"
[[ $said != *perplexity* ]] || fail "a loss that was not measured: $said"
cat "$scratch/fish [4]"/shards/text_train_*.bin | tr -d '\0' | grep -qa "THE LAST LINE" ||
    fail "the last line of a text is not trained on"
# before it reads text; then errors that depend on the data
refused "finetuning with a wrong flag" '--dtype is "fp16"; expected' \
    $finetune "$model" "$scratch/fish.txt" -o "$scratch/fish3" --dtype fp16
refused "finetuning with flags that exclude each other" "--warmup-steps is 5; expected at most --max-steps = 2" \
    $finetune "$model" "$scratch/fish.txt" -o "$scratch/fish3" -x 2 -u 5
refused "finetuning in steps that do not divide" "--total-batch-tokens is 7; expected" \
    quietly $finetune "$model" "$scratch/fish.txt" -o "$scratch/fish3" -d 7
says "finetuning's plan" "$($finetune "$model" "$scratch/fish.txt" -o "$scratch/fish3" --dry-run 2>&1)" "memory plan" \
    "$scratch/fish3/shards/text_train_*.bin"
for flag in --dry-run=true "--dry-run 1"; do
    read -ra words <<<"$flag"
    said=$($finetune "$model" "$scratch/fish.txt" -o "$scratch/fish3" "${words[@]}" 2>&1)
    says "finetuning's plan by $flag" "$said" "memory plan" "$scratch/fish3/shards/text_train_*.bin"
done
says "finetuning on other shards" "$($finetune "$model" "$scratch/fish.txt" -o "$scratch/fish3" "${bytes[@]}" \
    --dry-run 2>&1)" "memory plan" "$scratch/bytes/b_train_"
refused "finetuning with a forgotten value" "is missing an argument" \
    $finetune "$model" "$scratch/fish.txt" -o "$scratch/fish3" -x
[ ! -e "$scratch/fish3" ] || fail "a plan, or what was refused, has left $(ls "$scratch/fish3")"
refused "finetuning no model" "has no config.json" $finetune "$scratch" "$scratch/fish.txt"
refused "finetuning a model that is not here" "hf download openai-community/gpt2-large config.json model.safetensors \
merges.txt tokenizer.json --local-dir $scratch/gpt2-large" $finetune "$scratch/gpt2-large" "$scratch/fish.txt"
refused "finetuning without text" "no text is given" $finetune "$model"
refused "finetuning with a missing text" "is not a file" $finetune "$model" "$scratch/none.txt"
# GPT-2's ids, with the merges of the model's folder.
if [ -e data/gpt2/vocab.bpe ]; then
    "$PROGRAM" -i "$DATA/fineweb/*_train_*.bin" "${tiny[@]}" -x 1 --merges data/gpt2/vocab.bpe \
        -o "$scratch/gpt2_model" >"$scratch/out" 2>&1 || fail "no model of GPT-2's ids: $(cat "$scratch/out")"
    model=$scratch/gpt2_model/step_00000001
    for i in $(seq 40); do echo "{\"text\": \"$i fish swim in a lake\"}"; done >"$scratch/fish.jsonl"
    said=$($finetune "$model" "$scratch/fish.jsonl" -o "$scratch/fish2" -x 3 2>&1) || fail "finetuning: $?: $said"
    says "finetuning GPT-2's ids" "$said" "held-out loss: "
    [ "$(jq .vocab_size "$scratch/fish2/step_00000003/config.json")" = 50257 ] || fail "not a model of GPT-2's ids"
    [ -e "$scratch/fish2/step_00000003/tokenizer.json" ] || fail "the finetuned model has no tokenizer"
else
    echo "skipped: finetuning with GPT-2's ids: data/gpt2/vocab.bpe is missing"
fi

# ---- the command of scripts/COMING_FROM.md, unchanged except for data, size and ranks

command=$(sed -n '/^    mpirun .*train_gpt2/,/[^\\]$/p' scripts/COMING_FROM.md | sed 's/\\$//' | tr '\n' ' ')
[[ $command == *"./train_gpt2 "*" --shuffle "*"--hellaswag "* ]] || fail "no command in COMING_FROM.md: $command"
eval "set -- ${command#*./train_gpt2 }"
"$PROGRAM" "$@" -i "$DATA/fineweb/*_train_*.bin" -j "$DATA/fineweb/*_val_*.bin" "${tiny[@]}" -u 2 \
    --hellaswag "$DATA/hellaswag/hellaswag_val.bin" -o "$scratch/llmc" >"$scratch/out" 2>&1 ||
    fail "llm.c's command: $(cat "$scratch/out")"
[ "$(of_log llmc 'map(select(.event == "hellaswag")) | length')" = 1 ] || fail "llm.c's command ran no HellaSwag"

[ $failed = 0 ] && echo "recipes plan, train, resume and refuse correctly"
exit $failed
