#!/usr/bin/env bash
# chaos.sh [KILLS] [FLAGS...] - kills a run of two ranks with SIGKILL many times, half of them while it writes a
# checkpoint, resumes it with --resume auto each time, and compares its result with an uninterrupted run
#
# Kills KILLS (100) runs; each following run resumes, and the last one runs to the end. Times are drawn from SEED (1):
# every second kill waits until a checkpoint is being written (its hidden folder exists), the others come at any time.
# FLAGS of train_gpt2, such as --optimizer muon, are those of all runs.
# Must be equal: weights and the optimizer's state, bit for bit, and the steps of the log, each once and in order.
# Prints its counts. Exit status 1: something differs.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
kills=100
if [[ ${1:-} =~ ^[^-] ]]; then
    kills=$1
    shift
fi
whole_numbers "$kills"
[[ ${1:--} = -* ]] || refuse "unexpected argument \"$1\"; expected flags of train_gpt2"
flags=("$@")
cd "$(dirname "$0")/../.."
RANDOM=${SEED:-1}
bin=build/cpu/train_gpt2
[ -x $bin ] || refuse "no $bin; make DEVICE=cpu all"
command -v mpirun >/dev/null || { echo "no mpirun found"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive
work=$(mktemp -d)
trap 'pkill -KILL -f "$work/killed" 2>/dev/null || true; rm -rf "$work"' EXIT
build/cpu/tokenize -o "$work" --hold-out 2 README.md llmc/RUNS.md scripts/README.md >/dev/null

# More steps than the killed runs make on an idle machine; a checkpoint every second step.
steps=$((12 * kills + 20))
start() {  # FOLDER FLAGS...
    local folder=$1
    shift
    exec mpirun --bind-to none --oversubscribe -np 2 "$bin" -i "$work/text_train_*.bin" -e custom:l=2,h=2,c=64,t=32 \
        -t 32 -b 2 -d 2048 -x $steps -n 2 -z 1 --dtype bf16 --stochastic-rounding --shuffle \
        --keep-checkpoints 2 --threads 1 --tune=off "${flags[@]}" -o "$folder" "$@"
}
(start "$work/whole") >"$work/whole.txt" 2>&1 || { cat "$work/whole.txt"; exit 1; }

ranks() { pgrep -f "$bin .*-o $work/killed" || true; }
newest() { find "$work/killed" -maxdepth 1 -name 'step_????????' 2>/dev/null | sort | tail -n 1 || true; }
done=0 writing=0 starts=0 partial=0
while [ $done -lt "$kills" ]; do
    before=$(newest)
    (start "$work/killed" --resume auto) >"$work/killed.txt" 2>&1 &
    launcher=$!
    starts=$((starts + 1))
    if [ $((starts % 2)) -eq 0 ]; then  # during one of the next three checkpoints
        wanted=$((RANDOM % 3 + 1)) seen=0
        while kill -0 $launcher 2>/dev/null && [ $seen -lt $wanted ]; do
            if compgen -G "$work/killed/.step_*.partial" >/dev/null; then
                seen=$((seen + 1))
                [ $seen -lt $wanted ] && while compgen -G "$work/killed/.step_*.partial" >/dev/null; do :; done
            fi
        done
    else  # at any time; half of them after one more checkpoint
        sleep 0.$((RANDOM % 8))$((RANDOM % 10))
        [ $((RANDOM % 2)) -eq 0 ] || while kill -0 $launcher 2>/dev/null && [ "$(newest)" = "$before" ]; do :; done
    fi
    victims=$(ranks)
    # shellcheck disable=SC2086
    if [ -n "$victims" ] && kill -KILL $victims 2>/dev/null; then
        done=$((done + 1))
        compgen -G "$work/killed/.step_*.partial" >/dev/null && writing=$((writing + 1))
    fi
    { wait $launcher || true; } 2>/dev/null
    grep -q 'partial: incomplete' "$work/killed.txt" && partial=$((partial + 1))
    if grep -q '^error: ' "$work/killed.txt"; then cat "$work/killed.txt"; exit 1; fi
    if grep -q '^done: ' "$work/killed.txt"; then
        echo "error: only $done of $kills runs were killed when all $steps steps were done" >&2
        exit 1
    fi
done
(start "$work/killed" --resume auto) >"$work/killed.txt" 2>&1 || { cat "$work/killed.txt"; exit 1; }

name=$(printf step_%08d $steps) failed=0
for file in "$work/whole/$name"/*.safetensors; do
    cmp "$file" "$work/killed/$name/$(basename "$file")" || failed=1
done
# Every step once, with "resume" events applied; without measured times.
steps_of() {
    jq -c -s 'reduce .[] as $e ([]; if $e.event == "resume" then map(select(.step <= $e.step))
            elif $e.event == "step" then . + [$e] else . end) | .[]
        | del(.ms, .tokens_per_s, .valid_tokens_per_s, .comm_ms, .comm_hidden, .time)' "$1"
}
cmp <(steps_of "$work/whole/log.jsonl") <(steps_of "$work/killed/log.jsonl") || failed=1
[ "$(steps_of "$work/killed/log.jsonl" | wc -l)" -eq $steps ] || failed=1
echo "$done runs killed, $writing of them while a checkpoint was written; $partial partial ones skipped;" \
    "$steps steps, each once; weights and the optimizer's state $([ $failed -eq 0 ] && echo equal || echo DIFFERENT)"
exit $failed
