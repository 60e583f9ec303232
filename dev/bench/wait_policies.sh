#!/usr/bin/env bash
# wait_policies.sh [STEPS [ROUNDS]] - step time by how OpenMP's threads wait for each other, on an idle machine and with
# 2 and 8 busy loops running
#
# Each round runs every policy once. A row has the median over all rounds of each run's median, and the ratio of "own"
# to the better of the two policies that a user can choose: spinning as GNU's library does (GOMP_SPINCOUNT=300000) and
# sleeping (OMP_WAIT_POLICY=passive). "own" is what train_gpt2 sets. LOADS="0 2 8" and MODELS="quickstart 124M" select
# rows; a run that takes longer than LIMIT=60 seconds counts with the steps made by then, and as "none" if it made none.
# Needs a CPU build, the quickstart's data and an otherwise idle machine.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
most_words 2 "$@"
whole_numbers "$@"
cd "$(dirname "$0")/../.."
bin=build/cpu/train_gpt2
steps=${1:-30} rounds=${2:-3}
for need in $bin build/cpu/random_shard data/bible/bible_train_000000.bin; do
    [ -e "$need" ] || refuse "no $need; run DEVICE=cpu scripts/quickstart.sh and make DEVICE=cpu tools first"
done
work=$(mktemp -d)
busy=()
trap '[ ${#busy[@]} -eq 0 ] || kill "${busy[@]}"; rm -rf "$work"' EXIT
build/cpu/random_shard "$work/train.bin" 2000000 >/dev/null

# MODEL POLICY: median ms per step
step_ms() {
    local flags environment=()  # data, model, steps
    case $1 in
        quickstart) flags=("data/bible/bible_train_*.bin" -e "custom:l=4,h=4,c=128,t=128" -b 8 -t 128 -x "$steps") ;;
        124M) flags=("$work/train.bin" -e d12 -b 1 -t 256 -x 4) ;;
    esac
    case $2 in
        spin) environment=(GOMP_SPINCOUNT=300000) ;;
        sleep) environment=(OMP_WAIT_POLICY=passive) ;;
    esac
    timeout -s KILL "${LIMIT:-60}" env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT "${environment[@]}" $bin \
        -i "${flags[@]}" --tune=off >"$work/out" 2>&1 || true
    awk '/^step [0-9]/ && $5 ~ /e[-+]/ { print $7 }' "$work/out" | sort -n |
        awk '{ ms[NR] = $1 } END { print NR ? ms[int((NR + 1) / 2)] : 1e9 }'
}

echo "| model | busy loops | spin | sleep | own | own / better |"
echo "|---|---|---|---|---|---|"
for model in ${MODELS:-quickstart 124M}; do
    for load in ${LOADS:-0 2 8}; do
        for ((i = 0; i < load; i++)); do
            (while :; do :; done) &
            busy+=($!)
        done
        for ((round = 0; round < rounds; round++)); do
            for policy in spin sleep own; do echo "$policy $(step_ms $model $policy)"; done
        done | sort -k1,1 -k2,2n | awk -v model=$model -v load=$load '
            { times[$1, count[$1]++] = $2 }
            function median(policy) { return times[policy, int(count[policy] / 2)] }
            function shown(ms) { return ms >= 1e9 ? "none" : sprintf("%.1f", ms) }
            END {
                spin = median("spin"); sleep = median("sleep"); own = median("own")
                printf "| %s | %d | %s | %s | %s | %.2f |\n", model, load, shown(spin), shown(sleep), shown(own),
                    own / (spin < sleep ? spin : sleep)
            }'
        [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}"
        busy=()
    done
done
