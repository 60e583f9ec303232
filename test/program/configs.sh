#!/usr/bin/env bash
# configs.sh - the files in configs/: the plan of each real model, 20 steps of a tiny one with the other options;
# finetuning of a Hugging Face model on text; llm.c's command in scripts/COMING_FROM.md
#
#   test/program/configs.sh [BUILD]     with the programs in BUILD (build/cpu)
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
root=$PWD build=$(realpath -m "${1:-build/cpu}")
export PROGRAM=$build/train_gpt2 OMP_NUM_THREADS=1
unset RANKS HOSTFILE CUDA_VISIBLE_DEVICES
export XDG_CACHE_HOME=$work/cache # for autotuning results

# A folder of data with names as llm.c has them: random tokens of GPT-2's vocabulary.
for prefix in fineweb/fineweb fineweb100B/fineweb edu_fineweb100B/edu_fineweb; do
    mkdir -p "$work/data/$(dirname $prefix)"
    "$build/random_shard" "$work/data/${prefix}_train_000001.bin" 1050000 &&
        "$build/random_shard" "$work/data/${prefix}_val_000000.bin" 600 || exit 1
done
# One example of HellaSwag with a context of two tokens and four endings of one, after a header as llm.c's.
mkdir "$work/data/hellaswag"
python3 -c 'import struct, sys
sys.stdout.buffer.write(struct.pack("<4i", 20240522, 1, 1, 32).ljust(1024, b"\0") +
    struct.pack("<16H", 65535, 32, 0, 1, 4, 2, 11, 12, 1, 5, 1, 6, 1, 7, 1, 8))' \
    >"$work/data/hellaswag/hellaswag_val.bin"
cd "$work" || exit 1 # the paths in the files are relative
tiny=(-e "custom:l=1,h=1,c=16,t=32" -t 32 -d 128 -x 20 -u 2 -g 8)

# of_log FOLDER FILTER: the output of a jq filter on all events of its log
of_log() { jq -s "$2" "$work/$1/log.jsonl"; }

# config NAME STEPS OPTIONS...: the real model's plan, and 20 steps of a tiny model with the other options; the jq
# expressions OPTIONS must be true for them
config() {
    local name=$1 steps=$2 said option file=$root/configs/$1.json
    shift 2
    said=$("$PROGRAM" --config "$file" --dry-run --ignore-memory-plan -b 1 2>&1) ||
        fail "the plan of $name: exit code $?: $said"
    says "the plan of $name" "$said" "training: $steps" "memory plan"
    [ ! -e "runs/$name" ] || fail "the plan of $name left something behind"
    said=$("$root/scripts/run_one_node.sh" --config "$file" "${tiny[@]}" 2>&1) || fail "$name: exit code $?: $said"
    for option in '.dtype == "bf16"' '."weight-decay" == (if .optimizer == "muon" then 0.3 else 0.1 end)' .shuffle \
        '."zero-stage" == 1' '."micro-batch" == 4' "$@"; do
        [ "$(of_log "runs/$name" "first.options | $option")" = true ] || fail "the options of $name: not so: $option"
    done
    [ "$(of_log "runs/$name" 'map(.event) | [indices("step", "val") | length]')" = "$(jq -n '[20, 2]')" ] ||
        fail "the log of $name has not 20 steps, and validation before and after them"
    [ -e "runs/$name/step_00000020/model.safetensors" ] || fail "$name saved no model"
}
export RANKS=1
config gpt2-124M "18,865 steps of 524,288 tokens" '.lr == 6e-4 and ."final-lr-fraction" == 0' \
    '."checkpoint-every" == 5000'
config gpt2-124M-adamw "9,536 steps of 524,288 tokens" '.lr == 1.8e-3 and .optimizer == "adamw" and .beta2 == 0.95' \
    '."lr-schedule" == "wsd" and ."val-tokens" == 20 * 524288 and ."val-spread" == false'
config gpt2-124M-muon "6,294 steps of 524,288 tokens" '.lr == 1.8e-3 and .optimizer == "muon" and .beta2 == 0.99' \
    '."lr-schedule" == "wsd" and ."val-tokens" == 20 * 524288 and ."val-spread" == false' \
    '."final-lr-fraction" == 0 and ."muon-lr-scale" == 2 and ."muon-cautious-decay"'
config gpt2-350M "60,000 steps of 524,288 tokens" '.lr == 3e-4 and ."final-lr-fraction" == 0'
config gpt2-774M "286,102 steps of 524,288 tokens" '.lr == 2.5e-4 and ."final-lr-fraction" == 0'
config gpt2-1558M "32,000 steps of 1,048,576 tokens" '.lr == 6e-4 and ."final-lr-fraction" == 0.1'
config gpt3-125M "572,204 steps of 524,288 tokens" '.lr == 6e-4 and ."final-lr-fraction" == 0.1' \
    '."skip-loss-z" == 7 and ."skip-norm-z" == 7' '."keep-checkpoints" == 5 and ."major-every" == 50000'
names=(finetune gpt2-{124M-adamw,124M-muon,124M,1558M,350M,774M} gpt3-125M)
[ "$(ls "$root/configs")" = "$(printf '%s.json\n' "${names[@]}")" ] ||
    fail "configs/ has other files: $(ls "$root/configs")"

# The same command resumes; HellaSwag's line, commented out, works as it stands.
sed 's|// "hellaswag"|"hellaswag"|' "$root/configs/gpt2-124M.json" >with_hellaswag.json
said=$("$PROGRAM" --config with_hellaswag.json "${tiny[@]/#20/21}" 2>&1) || fail "resuming: exit code $?: $said"
says "resuming" "$said" "resuming after step 20/21" "changed: --max-steps 20 -> 21" "HellaSwag acc_norm"
[ "$(of_log runs/gpt2-124M 'map(select(.event == "step")) | length')" = 21 ] || fail "the run did not resume"

ends 2 'error: the number of shards that match "data/fineweb/fineweb_train_*.bin" is 0; expected ' \
    env -C / "$PROGRAM" --config "$root/configs/gpt2-124M.json"

# ---- finetuning, as scripts/README.md has it

seq 600 | sed 's/$/ birds sit in a tree/' >birds.txt
"$build/tokenize" -o bytes --name b --document-start . birds.txt >out
"$PROGRAM" -i "bytes/b_train_*.bin" -e custom:l=1,h=2,c=32,t=64 -b 4 -t 64 -x 60 -l 1e-2 -v 0 -o model >out 2>&1 ||
    fail "no model of bytes: $(cat out)"
seq 1200 | sed 's/$/ fish swim in a lake/' >fish.txt
"$build/tokenize" -o data/fish --name fish --document-start . fish.txt >out
finetune() {
    "$PROGRAM" --config "$root/configs/finetune.json" -e model -i 'data/fish/fish_train_*.bin' \
        -j 'data/fish/fish_val_*.bin' -o runs/fish -d 1024 -l 1e-3 2>&1
}
said=$(finetune) || fail "finetuning: exit code $?: $said"
says "finetuning" "$said" "starts from the newest checkpoint, model/step_00000060"
of_log runs/fish 'map(select(.event == "val").loss) | last < 0.9 * first' | grep -qx true ||
    fail "finetuning took the held-out loss to $(of_log runs/fish 'map(select(.event == "val").loss)')"
says "finetuning again" "$(finetune)" "the checkpoint has completed all"
says "a sample" "$("$build/generate" -e runs/fish --prompt "7 fish" -n 8 2>&1)" "7 fish"

# ---- the command of scripts/COMING_FROM.md, unchanged except for data, size and ranks

command=$(sed -n '/^    mpirun .*train_gpt2/,/[^\\]$/p' "$root/scripts/COMING_FROM.md" | sed 's/\\$//' | tr '\n' ' ')
[[ $command == *"./train_gpt2 "*" --shuffle "*"--hellaswag "* ]] || fail "no command in COMING_FROM.md: $command"
eval "set -- ${command#*./train_gpt2 }"
"$PROGRAM" "$@" --print-config >llmc.json 2>out || fail "llm.c's options"
grep -q '"epochs": 1,' llmc.json || fail "llm.c makes one pass over its data"
"$PROGRAM" --config llmc.json -i "data/fineweb/*_train_*.bin" -j "data/fineweb/*_val_*.bin" "${tiny[@]}" -b 4 \
    --hellaswag "data/hellaswag/hellaswag_val.bin" -o llmc >out 2>&1 ||
    fail "llm.c's command: $(cat out)"
[ "$(of_log llmc 'map(select(.event == "hellaswag")) | length')" = 1 ] || fail "llm.c's command ran no HellaSwag"

[ $failed = 0 ] && echo "configs plan, train, resume and refuse correctly"
exit $failed
