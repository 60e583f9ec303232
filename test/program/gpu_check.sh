#!/usr/bin/env bash
# gpu_check.sh - tests dev/gpu_check.sh without a GPU: refused arguments, the chosen steps and their limits, the table
# of kernels, equal steps of two runs, and rehearsed steps that pass, fail and are stopped
# shellcheck disable=SC2015
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/support/check.sh
. test/support/check.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

one_line 'error: there is no part' dev/gpu_check.sh
for word in 6 none training=0 training=x data=5=6 ''; do
    one_line "error: \"$word\" is no part or step" dev/gpu_check.sh 1 "$word"
done
one_line 'error: unknown option "--fast"' dev/gpu_check.sh 1 --fast
one_line 'error: -o has no value' dev/gpu_check.sh 1 -o --list
nvidia-smi -L 2>/dev/null | grep -q GPU || one_line "finds no GPU" dev/gpu_check.sh 1 -o "$scratch/a"
[ ! -e "$scratch/a" ] || fail "a refused check wrote into its folder"

# lists EXPECTED WORDS...: the chosen steps and limits, and their sum
lists() {
    local said
    said=$(dev/gpu_check.sh "${@:2}" --list | cut -d ' ' -f 1,2 | xargs)
    # shellcheck disable=SC2053
    [[ $said == $1 ]] || fail "gpu_check.sh ${*:2} chooses $said"
}
lists "machine 10 numbers 105 data 5 * peer 75 all 310" 1
lists "data 5 tests_kernels 115 *racecheck 100 all 240" 2
lists "data 5 batch 10 tuned_3 *same_losses *tests_runs 100 all [45]??" 3
lists "data 5 batch 10 tuned_3 40 kernel_times_build 10 kernel_times 60 bench 7 all 132" bench=7 kernel_times=60
lists "data 5 batch 10 training 60 * levers 330 all 430" 4
lists "data 9 ranks_mpi 15 ranks_nccl_2 20 same_losses 2 all 46" same_losses data=9
lists "data 5 memcheck 50 memcheck_layer 100 all 105" memcheck=50 memcheck_layer
names=$(sed -n '/^declare -A parts/,/)$/{/declare/!p}' dev/gpu_check/plan.sh | grep -oE '[a-z0-9_]+=' | sort -u | wc -l)
[ "$(dev/gpu_check.sh {1..5} --list | grep -vc '^all ')" -eq "$names" ] || fail "a step of a part is not in the script"
[ $failed = 0 ] || exit 1

# The table: from ncu's output, and from kernel_times.cpp's; of values that ncu could not measure and truncated rows.
{
    echo "==PROF== Connected to process 1"
    stall=smsp__average_warps_issue_stalled active=avg.pct_of_peak_sustained_active
    echo '"ID","Kernel Name","Grid Size","dram__bytes.sum","gpu__time_duration.sum","lts__t_sector_hit_rate.pct",'"\
\"sm__warps_active.$active\",\"smsp__issue_active.$active\",\"${stall}_barrier_per_issue_active.ratio\",\
\"${stall}_long_scoreboard_per_issue_active.ratio\""
    echo '"","","","byte","ns","%","%","%","inst","inst"'
    gelu='"void kernels::(anonymous namespace)::gelu_kernel<float, 4>(kernels::Gelu<float>)"'
    echo "\"0\",$gelu,\"(12, 1, 1)\",\"4,000,000\",\"1,000\",\"50\",\"80\",\"20\",\"0.5\",\"4\""
    echo "\"1\",$gelu,\"(12, 1, 1)\",\"2,000,000\",\"1,000\",\"70\",\"90\",\"30\",\"0.5\",\"6\""
    echo "\"2\",$gelu,\"(48, 1, 1)\",\"1,000,000\",\"8,000\",\"n/a\",\"90\",\"30\",\"3.5\",\"1\""
    echo '"3","none","(1, 1, 1)","n/a","n/a"'
} >"$scratch/ncu"
printf '%s\t%s\t%s\t%s\t%s\n' 2500.0 4 8,1,1 32,1,1 _ZN7kernels4geluEv 100 2 2,1,1 32,1,1 _ZN7kernels4geluEv \
    500 1 - - 'memory copy' 9 0 2,1,1 32,1,1 never 5000 1 - - step 2000 1 - - idle >"$scratch/cupti"
for file in ncu cupti; do
    dev/gpu_check/kernel_table.py "$scratch/$file" || wrong "kernel_table.py fails with $file"
done >"$scratch/table"
# shellcheck disable=SC2016
for line in \
    '| kernel | grid | launches | us each | ms | share | GB/s | L2 hit | warps active | issue active | main stall |' \
    '`gelu_kernel<float, 4>` | 12,1,1 | 2 | 1.0 | 0.002 | 20.0 % | 3000 | 60 % | 85 % | 25 % | long_scoreboard 5.0 |' \
    '`gelu_kernel<float, 4>` | 48,1,1 | 1 | 8.0 | 0.008 | 80.0 % | 125 | 0 % | 90 % | 30 % | barrier 3.5 |' \
    '| `gelu` | 8,1,1 | 4 | 0.6 | 0.003 | 80.6 % |' '| `gelu` | 2,1,1 | 2 | 0.1 | 0.000 | 3.2 % |' \
    'a whole step: 0.005 ms, of which nothing ran for 0.002 ms (40.0 %)'; do
    grep -qF -- "$line" "$scratch/table" || { cat "$scratch/table"; wrong "the table lacks: $line"; }
done
grep -qE 'none|never' "$scratch/table" && wrong "the table has what was not measured"
for missing in README.md "$scratch/none" /dev/null; do
    said=$(dev/gpu_check/kernel_table.py "$missing" 2>&1) && wrong "a table of nothing"
    [[ $said == "error: "* ]] || wrong "of a file without kernels kernel_table.py prints: $said"
done

# Losses of two runs, a separate host name, and a machine without a network, whose loopback interface is down.
row() { echo "step $1/4 |  $2 6.00e-04  $3   101.2 1.00k   0:01"; }
{ row 1 5.5 1.25; row 2 5.25 1.5; } >"$scratch/one"
{ echo "ranks over NCCL"; cat "$scratch/one"; } >"$scratch/same"
{ row 1 5.5 1.25; row 2 5.25 1.51; } >"$scratch/other"
same() { dev/gpu_check/same_steps.py "$@" >"$scratch/out" 2>&1; }
same --exact "$scratch/one" "$scratch/same" && same "$scratch/one" "$scratch/other" || wrong "equal losses differ"
same --exact "$scratch/one" "$scratch/other" && wrong "other norms are equal"
same --exact /dev/null /dev/null && wrong "no losses are equal"
for step in 1 2 3 4; do row $step 5.5 1.25; done >"$scratch/even"
sed 's/^step 4.* 101.2 /step 4\/4 |  5.5 6.00e-04  1.25    58.1 /' "$scratch/even" >"$scratch/uneven"
same --times "$scratch/even" || wrong "equal times differ"
same --times "$scratch/uneven" && wrong "a step of half the time passes"
if unshare --uts true 2>/dev/null; then
    said=$(OMPI_COMM_WORLD_RANK=3 dev/gpu_check/own_host.sh uname -n)
    [ "$said" = host3 ] || wrong "a rank's own host is $said"
fi
if unshare --net true 2>/dev/null; then
    unshare --net bash -c 'dev/gpu_check/loopback.py && python3 -c "import socket
server = socket.create_server((\"127.0.0.1\", 0))
socket.create_connection(server.getsockname(), timeout=5)"' || wrong "loopback.py does not bring up the interface"
fi

# Rehearsed steps of the programs in build/cpu: what passes, and a program that fails, takes too long, or runs when the
# check is stopped.
mkdir "$scratch/bin"
export PATH=$scratch/bin:$PATH
tool() { cat >"$scratch/bin/$1" && chmod +x "$scratch/bin/$1"; }
tool make <<<'#!/bin/sh'
rehearses() { ends "$1" "$2" dev/gpu_check.sh --rehearse -o "$scratch/r" "${@:3}"; }
kept() { says "$1" "$(tar -tzf "$scratch/r/steps/$1.tar.gz")" "$2"; }
rehearses 0 "8 steps, 0 failed" training same_algorithms levers=90
says "the summary" "$(cat "$scratch/r/steps/summary.md")" "**training** started" \
    "**same_algorithms** pass, " " s: PASS" "| nondeterministic attention | 2 + 2 | " "not run: machine, numbers, "
kept results results/training/log.jsonl
kept logs logs/training.log
tar -tzf "$scratch/r/steps/results.tar.gz" | grep step_ && fail "a checkpoint is kept"
tool mpirun <<'BASH'
#!/usr/bin/env bash
echo "mpirun of a test"
[ "$HOW" != fails ] || exit 3
if [ "$HOW" = stops ]; then
    read -r _ _ _ check _ </proc/$PPID/stat  # the parent of timeout
    kill -TERM "$check"
fi
exec sleep 60
BASH
HOW=fails rehearses 1 "**ranks_mpi** **fail** (3)" ranks_mpi
HOW=waits rehearses 1 "**ranks_mpi** **time limit**" ranks_mpi=1 data=1
HOW=stops rehearses 143 "**ranks_mpi** stopped by signal 15" ranks_mpi
says "a stopped check" "$(tar -xzOf "$scratch/r/steps/logs.tar.gz" logs/ranks_mpi.log)" "mpirun of a test"
[ $failed = 0 ] && echo "all checks passed"
exit $failed
