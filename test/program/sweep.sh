#!/usr/bin/env bash
# sweep.sh - dev/sweep.sh trains all combinations, skips finished runs, resumes interrupted ones, counts failed ones and
# branches a checkpoint
#
#   test/program/sweep.sh [BUILD]     with the programs in BUILD (build/cpu)
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
build=$PWD/${1:-build/cpu}
check() {  # WHAT COMMAND...
    local what=$1
    shift
    "$@" || fail "$what: failed: $*"
}
export OMP_WAIT_POLICY=passive
"$build/tokenize" -o "$work" --name t --hold-out 2 README.md llmc/RUNS.md scripts/README.md >/dev/null
train=("$build/train_gpt2" -i "$work/t_train_*.bin" -j "$work/t_val_*.bin" -e custom:l=1,h=2,c=32,t=32 -b 2 -t 32
    --val-tokens 256 --tune=off --dtype fp32)
sweep() { dev/sweep.sh -o "$work/sweep" --seeds '1 2' --jobs 2 "$@"; }

small=(--vary '--lr 1e-3 1e-2' --vary '-u 0 5' -- "${train[@]}" -x 20)
sweep "${small[@]}" >"$work/out" 2>&1
check "a sweep" test $? = 0
check "all runs" test "$(grep -c ^started: "$work/out")" = 8
check "rows" test "$(grep -c '^| `lr=1e-[23],u=[05]` | [0-9.]* | [0-9.]* | [0-9.]* | [0-9.]*, [0-9.]* |$' \
    "$work/sweep/table.md")" = 4
check "order" sort -C -t '|' -k 3,3 <(grep '^| `lr' "$work/sweep/table.md")
check "a plot" test -s "$work/sweep/plot.png"
# The same run by hand has the same loss, and the table its mean.
"${train[@]}" -x 20 --lr 1e-2 -u 5 --seed 2 --threads 1 -o "$work/alone" >/dev/null
loss() { jq -rs 'map(select(.event == "val")) | last.loss' "$1/log.jsonl"; }
check "the loss by hand" test "$(loss "$work/alone")" = "$(loss "$work/sweep/lr=1e-2,u=5,seed=2")"
mean=$(awk "BEGIN { printf \"%.4f\", ($(loss "$work/sweep/lr=1e-2,u=5,seed=1") + $(loss "$work/alone")) / 2 }")
check "the mean" grep -q "^| \`lr=1e-2,u=5\` | $mean |" "$work/sweep/table.md"
cp "$work/sweep/table.md" "$work/before.md"
sweep "${small[@]}" >"$work/out" 2>&1
check "nothing to do again" test "$(grep -c ^started: "$work/out")" = 0
check "the same table" cmp "$work/before.md" "$work/sweep/table.md"

# Other flags are another sweep; other values and seeds are not.
dev/sweep.sh -o "$work/sweep" --vary '--lr 1e-3' -- "${train[@]}" -x 21 >"$work/out" 2>&1
check "other flags" test $? = 2
says "other flags" "$(cat "$work/out")" "which has runs of other flags: " " -x 20; expected another folder"
sweep --vary '--lr 1e-3 1e-2' --vary '-u 5' -- "${train[@]}" -x 20 >"$work/out" 2>&1
check "fewer values" test $? = 0
# A run whose step doubled to 128 tokens at its fifth, for branches.
branched=("$build/train_gpt2" -i "$work/t_train_*.bin" -j "$work/t_val_*.bin" -e custom:l=1,h=2,c=32,t=32 -b 1 -t 32
    --val-tokens 256 --tune=off --dtype fp32 --threads 1 --batch-schedule 0:64,256:128 -x 20 -n 10 --lr 1e-2 --seed 7)
"${branched[@]}" -o "$work/run" >/dev/null
checkpoint=$work/run/step_00000010

# interrupted RUN ARGUMENTS...: interrupted, then finished by the same command, with the loss of a whole run
interrupted() {
    local run=$1 pid
    shift
    rm -rf "$work"/{whole,cut}
    dev/sweep.sh -o "$work/whole" --jobs 1 "$@" >/dev/null 2>&1
    setsid dev/sweep.sh -o "$work/cut" --jobs 1 "$@" >"$work/out" 2>&1 &
    pid=$!
    until [ "$(grep -c '"event":"step"' "$work/cut/$run/log.jsonl" 2>/dev/null)" -gt 0 ] 2>/dev/null; do
        sleep 0.05
        kill -0 $pid 2>/dev/null || break
    done
    one_line "error: -o is \"$work/cut\", in which another sweep is training; expected another folder" \
        dev/sweep.sh -o "$work/cut" --jobs 1 "$@"
    check "its output is kept" test -s "$work/cut/$run.txt"
    kill -TERM $pid
    wait $pid
    check "interrupted" test $? = 130
    check "a checkpoint" compgen -G "$work/cut/$run/step_*" >/dev/null
    check "no table" test ! -e "$work/cut/table.md"
    dev/sweep.sh -o "$work/cut" --jobs 1 "$@" >/dev/null 2>&1
    check "resumed" test "$(grep '"event":"resume"' "$work/cut/$run/log.jsonl" | tail -n 1 | jq -r .folder |
        xargs dirname)" = "$work/cut/$run"
    check "the same loss" test "$(loss "$work/cut/$run")" = "$(loss "$work/whole/$run")"
}
interrupted lr=1e-3,seed=1 --seeds 1 --vary '--lr 1e-3' -- "${train[@]}" -x 4000 -d 64 --threads 1
interrupted d=64,seed=7 --from "$checkpoint" --vary '-d 64' -- "$build/train_gpt2" --max-tokens 256k

# A run that fails.
dev/sweep.sh -o "$work/bad" --seeds 1 --vary '--lr 1e-3 1000' -- "${train[@]}" -x 20 --weight-decay 1000 \
    >"$work/out" 2>&1
check "a failed run" test $? = 1
check "its row, last" grep -q '^| `lr=1000` | failed | - | ' <(grep '^| `' "$work/bad/table.md" | tail -n 1)
says "the last line" "$(tail -n 1 "$work/out")" "error: 1 of 2 runs failed; $work/bad/lr=1000,seed=1.txt: the "
check "its output" grep -q '^error: ' "$work/bad/lr=1000,seed=1.txt"
# Runs without a validation loss are refused; without a plot there is a note.
one_line "error: -v is 0 in lr=1e-3,seed=1, which then has no validation loss; expected -v above 0" \
    dev/sweep.sh -o "$work/x" --vary '--lr 1e-3 1e-2' -- "${train[@]}" -x 20 -v 0
rm "$work/sweep/plot.png"
mkdir "$work/sweep/plot.png"
sweep "${small[@]}" >"$work/out" 2>&1
check "without a plot" test $? = 0
says "the last line" "$(tail -n 1 "$work/out")" "note: no $work/sweep/plot.png"

# Notes below the table. The loss is least at --lr 4; the scatter of two seeds is 0.01, and beta2 changes less.
tool fake <<'END'
#!/usr/bin/env bash
[[ $* != *--dry-run* ]] || { echo "validation data: "; exit 0; }
while [ $# -gt 1 ]; do declare "${1//-/}=$2" && shift 2; done
mkdir -p "$o"
{
    awk "BEGIN { print \"{'event':'val','loss':\" ($lr - 4) ^ 2 - $beta2 / 20 + $seed / 100 + 1 \"}\" }"
    echo "{'event':'end','reason':'${reason:-all steps completed}','seconds':60}"
} | tr "'" '"' >"$o/log.jsonl"
END
notes() {  # SEEDS LRS EXPECTED
    rm -rf "$work/notes"
    dev/sweep.sh -o "$work/notes" --seeds "$1" --vary "--lr $2" --vary '--beta2 0.9 0.99' --vary '--dtype bf16' -- \
        "$work/bin/fake" >"$work/out" 2>&1
    check "the notes of $2" test "$(grep '^[^|]' "$work/notes/table.md")" = "$3"
}
# That a larger beta2 is better by 0.0045 is no reason to try a still larger one, with two seeds or one.
notes '1 2' '2 4 8' 'Within the scatter of seeds of the best: `lr=4,beta2=0.9,dtype=bf16`.'
notes '1 2' '1 2' 'Within the scatter of seeds of the best: `lr=2,beta2=0.9,dtype=bf16`.
Best at the edge of the range: try `--lr 4`.'
notes 1 '1 2' 'One seed: the scatter of seeds is not known, and may explain the differences. Add --seeds.'
check "the spread of one seed" grep -q '^| `lr=2,beta2=0.9,dtype=bf16` | 4.9650 | - | 1.00 | 4.9650 |$' "$work/out"
reason=interrupted notes '1 2' '1 2' ''
check "an interrupted run" grep -q '^| `lr=2,beta2=0.9,dtype=bf16` | failed |' "$work/out"

# Branches of a checkpoint, until 2048 tokens of the run.
branch() {  # FOLDER SIZES FLAGS...
    dev/sweep.sh -o "$work/$1" --from "$checkpoint" --vary "-d $2" -- "$build/train_gpt2" "${@:3}" >"$work/out" 2>&1
}
# logged FILTER: of the logs of the three branches, in one line
logged() { for size in 64 128 1024; do jq -cs "$1" "$work/d/d=$size,seed=7/log.jsonl"; done | xargs; }
branch d '64 128 1024'
check "branches" test $? = 0
check "their steps and tokens" test "$(logged 'map(select(.event == "step")) | [length, last.tokens_so_far]')" = \
    "[16,2048] [8,2048] [1,2048]"
rate=$(jq 'select(.event == "step" and .step == 10).lr' "$work/run/log.jsonl")
check "f^0.5 times the rate, which falls to 0 in the last half" test "$(logged 'map(select(.event == "step").lr /
    '"$rate"' * 1e4 | round) | [first, last]')" = "[7071,884] [10000,2500] [28284,28284]"
check "one validation, at the end" test "$(logged 'map(select(.event == "val").step)')" = "[26] [18] [11]"
critical=$(logged 'map(select(.event == "val").loss)' | tr -d '[]' | awk '{ least = $1
    for (i = 2; i <= 3; ++i) if ($i < least) least = $i
    for (i = 1; i <= 3; ++i) if ($i <= least + 0.005) found = i
    print (found == 1 ? "at most 64" : found == 3 ? "at least 1024" : "128") }')
check "the critical batch" grep -q "^Critical batch: $critical tokens per step" "$work/d/table.md"
"$build/train_gpt2" -y "$checkpoint" -o "$work/hand" -d 128 --max-tokens 2048 -k wsd --cooldown-fraction 0.25 -q 0 \
    -u 0 --lr "$(python3 -c "print($rate / 2 ** 0.5)")" >/dev/null
check "-d 128 is the run continued by hand" cmp "$work/hand/step_00000018/model.safetensors" \
    "$work/d/d=128,seed=7/step_00000018/model.safetensors"
branch d '64 128 1024'
check "nothing to do again" test "$?, $(grep -c ^started: "$work/out")" = "0, 0"
# A branch that was killed before it saved.
rm -r "$work/d/d=128,seed=7"/step_*
sed -i '$d' "$work/d/d=128,seed=7/log.jsonl"
branch d '64 128 1024'
check "a branch that saved nothing starts again" test "$?, $(grep ^started: "$work/out")" = "0, started: d=128,seed=7"
one_line 'error: -x is given with --from; expected --max-tokens' dev/sweep.sh -o "$work/x" --from "$checkpoint" \
    --vary '-d 64 128' -- "$build/train_gpt2" -x 30
branch f '128 256' -l1e-3
check "no other rate" test "$(grep -c -- --lr= "$work/f/command")" = 0
one_line "error: -o is \"$work/f\", whose branches end at 1280 tokens, and these at 1792, a multiple of all" \
    dev/sweep.sh -o "$work/f" --from "$checkpoint" --vary '-d 128 256 384' -- "$build/train_gpt2" -l1e-3
no_branch() { one_line "error: $1" dev/sweep.sh -o "$work/x" --from "$checkpoint" --vary "$2" -- "${@:3}"; }
no_branch 'the dry run of d=100,seed=7 fails: ' '-d 100 200' "$build/train_gpt2"
checkpoint=$work/run
no_branch "--from is \"$work/run\"; expected a checkpoint of this version" '-d 128' true x
checkpoint=$work/run/step_00000020
sed -i '/"step":20,/s/"lr":[^,]*/"lr":1e-6/' "$work/run/log.jsonl"
no_branch "the learning rate of step 20 is 1e-06; expected 1 % or more of the run's --lr 0.01; use an" '-d 128' true x
sed -i '/"step":20,/d' "$work/run/log.jsonl"
no_branch "step 20 in \"$work/run/log.jsonl\" is missing or of another run" '-d 128' true x

# A dry run of every combination comes before any training.
one_line 'error: the dry run of lr=x,seed=1 fails: --lr is "x"; expected ' \
    dev/sweep.sh -o "$work/x" --vary '--lr 1e-3 x' -- "${train[@]}"
refuses() { one_line "error: $1; see sweep.sh --help" dev/sweep.sh "${@:2}"; }  # EXPECTED ARGUMENTS...
refuses '--vary is "--lr"; expected a flag and values' -o "$work/x" --vary --lr -- true
refuses 'expected -- and the program with its flags, after the options' -o "$work/x" --vary '--lr 1'
check "no folder after a refusal" test ! -e "$work/x"
[ $failed = 0 ] && echo "sweeps train, resume, tabulate and refuse correctly"
exit $failed
