#!/usr/bin/env bash
# gpu_check.sh - tests dev/gpu_check.sh without a GPU: refused arguments, the chosen steps and their limits, and
# rehearsed steps that pass, fail and are stopped
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"

one_line 'error: there is no part' dev/gpu_check.sh
for word in 6 none training=0 training=x data=5=6 ''; do
    one_line "error: \"$word\" is no part or step" dev/gpu_check.sh 1 "$word"
done
one_line 'error: unknown option "--fast"' dev/gpu_check.sh 1 --fast
one_line 'error: -o has no value' dev/gpu_check.sh 1 -o --list
nvidia-smi -L 2>/dev/null | grep -q GPU || one_line "finds no GPU" dev/gpu_check.sh 1 -o "$work/a"
[ ! -e "$work/a" ] || fail "a refused check wrote into its folder"

# lists EXPECTED WORDS...: the chosen steps and limits, and their sum
lists() {
    local said
    said=$(dev/gpu_check.sh "${@:2}" --list | cut -d ' ' -f 1,2 | xargs)
    # shellcheck disable=SC2053
    [[ $said == $1 ]] || fail "gpu_check.sh ${*:2} chooses $said"
}
lists "numbers 105 batch 15 * peer 75 all 280" 1
lists "batch 15 tests_kernels 115 memcheck 100 races 100 all 330" 2
lists "batch 15 accumulation 25 * ranks 40 all 155" 3
lists "batch 15 kernel_times 60 bench 7 all 82" bench=7 kernel_times=60
lists "batch 15 training 60 * levers 330 all 430" 4
lists "batch 9 ranks 40 all 49" ranks batch=9
lists "races 50 all 50" races=50
names=$(sed -n '/^declare -A/,/)$/{/declare/!p}' dev/gpu_check/plan.sh | grep -oE '[a-z0-9_]+=' | sort -u | wc -l)
[ "$(dev/gpu_check.sh {1..5} --list | grep -vc '^all ')" -eq "$names" ] || fail "a step of a part is not in the script"
[ $failed = 0 ] || exit 1

# Rehearsed steps of the programs in build/cpu: what passes, and a program that fails, takes too long, or runs when the
# check is stopped.
export PATH=$work/bin:$PATH
tool make <<<'#!/bin/sh'
rehearses() { ends "$1" "$2" dev/gpu_check.sh --rehearse -o "$work/r" "${@:3}"; }
rehearses 0 "summary.md: 0 failed" numbers training bench levers=90
says "the summary" "$(cat "$work/r/steps/summary.md")" "**training** started" "**training** pass, " " s: median " \
    "| nondeterministic attention | 2 + 2 | " "**numbers** pass, " " s: PASS" "**bench** pass" "not run: kernel_times, "
says "what is kept" "$(tar -tzf "$work/r/steps/results.tar.gz")" results/training/log.jsonl results/choices.json \
    logs/levers.log
tar -tzf "$work/r/steps/results.tar.gz" | grep step_ && fail "a checkpoint is kept"
tool mpirun <<'BASH'
#!/usr/bin/env bash
echo "mpirun of a test"
[ "$HOW" != fails ] || exit 3
if [ "$HOW" = stops ]; then
    read -r _ _ _ timeout _ </proc/$PPID/stat  # the parent of the step's command
    read -r _ _ _ check _ </proc/"$timeout"/stat
    kill -TERM "$check"
fi
exec sleep 60
BASH
HOW=fails rehearses 1 "**ranks** **fail** (3)" ranks
HOW=waits rehearses 1 "**ranks** **time limit**" ranks=1 batch=5
HOW=stops rehearses 143 "**ranks** started" ranks
says "a stopped check" "$(tar -xzOf "$work/r/steps/results.tar.gz" logs/ranks.log)" "mpirun of a test"
[ $failed = 0 ] && echo "all checks passed"
exit $failed
