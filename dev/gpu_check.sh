#!/usr/bin/env bash
# gpu_check.sh 1|2 [--rehearse] [--list] [FOLDER] - builds for CUDA, measures (1) or tests (2) on this machine's GPU,
# and writes it all down in FOLDER/part1 or FOLDER/part2 (build/gpu_check)
#
#   1   speed: 124M, the time of each of its kernels, its matrix products, PyTorch's, every operation
#   2   correctness: all tests, ranks over MPI and NCCL, and compute-sanitizer
#
# Needs nvcc, g++ and a GPU; no network (scripts/bundle_deps.sh gathers what else the build needs beforehand). Each part
# takes 9 minutes at most, and builds what is not there: neither of the other part nor of another machine, from which
# gpu_check/pack.sh packs it. Every step has a limit of its own, and one that fails stops nothing. summary.md is written
# as it goes, logs.tar.gz after every step (gpu_check/steps.sh).
# --rehearse needs no GPU: it builds for CUDA where nvcc is, however long that takes, and for the CPU, and goes through
# the same steps with that build, at tiny sizes. --list prints the steps and their limits in seconds, and runs nothing.
#
# Exit codes: 0 every step that ran passed, 1 one did not, 2 there is no GPU or the command line is wrong.
set -uo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../scripts/help.sh"
usage() {
    echo "error: $1; expected gpu_check.sh 1|2 [--rehearse] [--list] [FOLDER]" >&2
    exit 2
}
rehearse=false list=false part='' folder=''
for argument in "$@"; do
    case $argument in
        --rehearse) rehearse=true ;;
        --list) list=true ;;
        -*) usage "\"$argument\" is no option" ;;
        *) if [ -z "$part" ]; then part=$argument; elif [ -z "$folder" ]; then folder=$argument;
            else usage "\"$argument\" is one argument too many"; fi ;;
    esac
done
[[ $part =~ ^[12]$ ]] || usage "the part is \"$part\""
folder=$(realpath -m "${folder:-$(dirname "$0")/../build/gpu_check}")/part$part
cd "$(dirname "$0")/.." || exit 1
work=$PWD/build/gpu_check_work
if ! $rehearse && ! $list && ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "error: nvidia-smi finds no GPU; expected one of compute capability 8.0 or later;" \
        "--rehearse runs what needs none" >&2
    exit 2
fi
# shellcheck source=dev/gpu_check/steps.sh
. dev/gpu_check/steps.sh

# ---- what is here, and why a step cannot be done: the first of some reasons, or nothing

first() { local reason; for reason in "$@"; do [ -z "$reason" ] || { echo "$reason"; return; }; done; }
found() { compgen -G "$1" | sort -V | tail -n 1; }
lacks() { [ -n "$1" ] || echo "no $2"; }

# shellcheck source=/dev/null
if [ -e build/deps/env.sh ]; then . build/deps/env.sh; fi
nvcc=$(command -v nvcc || found "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
toolkit=$(dirname "$(dirname "$(readlink -f "${nvcc:-/none/none}")")")
ncu=$(command -v ncu || found "$toolkit/bin/ncu" || found "/opt/nvidia/nsight-compute/*/ncu")
sanitizer=$(command -v compute-sanitizer || found "$toolkit/bin/compute-sanitizer")
python=$(python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null)
for cupti in "$toolkit" "$toolkit/extras/CUPTI" ${python:+"$python"/*}; do
    cupti_library=$(found "$cupti/lib*/libcupti.so*")
    if [ -e "$cupti/include/cupti.h" ] && [ -n "$cupti_library" ]; then break; fi
    cupti_library=''
done
no_nvcc=$(lacks "$nvcc" nvcc)
no_gpu=$(if $rehearse; then echo "needs a GPU"; fi)
no_mpi=$(lacks "$(command -v mpirun)" mpirun)
# Not imported: on a machine that reads its disk for the first time that may take half a minute, and is no step's time.
no_torch=$(python3 -c 'from importlib.util import find_spec
find_spec("torch").name, find_spec("numpy").name' 2>/dev/null || echo "no python3 with torch and numpy")
no_ncu=$(lacks "$ncu" ncu)
no_cupti=$(lacks "$cupti_library" "CUPTI beside nvcc or in python3's packages")
no_sanitizer=$(lacks "$sanitizer" compute-sanitizer)
python3 dev/gpu_check/loopback.py
no_hosts=$(unshare --uts true 2>/dev/null || echo "unshare --uts is not permitted")

# ---- sizes: GPT-2 124M in steps of 0.5 M tokens, or what a CPU does in seconds
bin=build/cuda model=d12 length=1024 tokens=524288 batches="64 32 16 8 4 2 1" steps=30 peer_steps=13
rows=65536 bench=(--seconds 0.1 --dtype bf16) build_limit=115
if $rehearse; then
    bin=build/cpu model=custom:l=2,h=2,c=64,t=64 length=32 tokens=256 batches="4 2" steps=8 peer_steps=5
    rows=32 bench=(--seconds 0.001 gelu) build_limit=7200
    export OMP_WAIT_POLICY=passive  # others use the cores, too
fi
shard=$work/random.bin
train=("$bin/train_gpt2" -i "$shard" -e "$model" -t "$length" -v 0 --dtype bf16)
# Training chooses its algorithms anew and keeps them here, so that the steps that are profiled choose none.
export XDG_CACHE_HOME=$work/cache
# Ranks of one machine need none of the networks that Open MPI would look for. They read each other's memory by a system
# call that a sandbox may refuse when it is too late to go without.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun=(mpirun --bind-to none --oversubscribe)

# shellcheck source=dev/gpu_check/build.sh
. dev/gpu_check/build.sh
data() {
    step data 10 "" "$bin/random_shard" "$shard" $((tokens * (steps + 1) + 1))
    # The largest batch whose memory plan fits.
    # shellcheck disable=SC2016
    step batch 10 "" bash -c 'for b in $1; do "${@:3}" -b $b --dry-run && echo $b >"$2" && exit; done; exit 1' - \
        "$batches" "$work/batch" "${train[@]}" -d $tokens -x 1
    batch=$(cat "$work/batch" 2>/dev/null || echo 1)
}

# What the machine is, for whoever reads the other results.
machine() {
    # shellcheck disable=SC2016
    step machine 5 "" timeout -k 2 20 bash -c '
        uname -a; nproc; free -g; df -h . /tmp /dev/shm; grep -m 1 "model name" /proc/cpuinfo; ulimit -a
        grep . /sys/class/net/*/operstate; ldd "$1/train_gpt2"; "$1/train_gpt2" --version
        env | grep -E "^(HOME|PATH|LD_|CUDA|NVIDIA|NCCL|OMP)"; nvidia-smi topo -m; nvidia-smi -q
        python3 -m pip list 2>/dev/null | grep -iE "torch|triton|nvidia"; true' - "$bin"
}

speed() {
    build
    machine
    step tests_attention 25 "" "$bin/tests" "[attention_methods],[attention_choice]" --durations yes
    data
    start training 60 "" "${train[@]}" -b "$batch" -d $tokens -x $steps
    # To be compared with the plan in training's log: what libraries take is a guess there.
    # shellcheck disable=SC2016
    # Few looks: each may hold up a step, and the median is to be that of the others.
    start memory_in_use 0 "$no_gpu" bash -c 'for i in {1..5}; do
        sleep 4; nvidia-smi --query-gpu=memory.used --format=csv,noheader; done | sort -n | tail -n 1'
    join
    step kernel_times_build 10 "$no_cupti" "${CXX:-g++}" -std=c++20 -O1 -shared -fPIC -I"$cupti/include" \
        -I"$toolkit/include" -o "$work/kernel_times.so" dev/gpu_check/kernel_times.cpp "$cupti_library" \
        -Wl,-rpath,"$(dirname "$cupti_library")"
    # shellcheck disable=SC2016
    local table=(bash -c '"${@:2}" && dev/gpu_check/kernel_table.sh "$1"' -)
    step kernel_times 25 "$(first "$no_cupti" "$no_gpu")" env CUDA_INJECTION64_PATH="$work/kernel_times.so" \
        KERNEL_TIMES="$work/kernel_times.tsv" "${table[@]}" "$work/kernel_times.tsv" \
        "${train[@]}" -b "$batch" -d $tokens -x 5
    # By the libraries that it brings along. It ends by itself before its limit, with the median of what steps there
    # are: torch.compile may take most of the time.
    local peer=(env -u LD_LIBRARY_PATH PYTHONUNBUFFERED=1 python3 dev/peer_pytorch.py -e "$model" -i "$shard"
        -b "$batch" -t "$length" -d "$tokens" -x "$peer_steps" --dtype bf16)
    if $rehearse; then peer+=(--no-compile --device cpu); fi
    minutes_within() { awk "BEGIN { print ($deadline + $1 - $SECONDS - 20) / 60 }"; }
    step peer_flash 75 "$no_torch" "${peer[@]}" --sdpa flash --max-minutes "$(minutes_within 75)"
    step peer_cudnn 70 "$(first "$no_torch" "$no_gpu")" "${peer[@]}" --sdpa cudnn --max-minutes "$(minutes_within 70)"
    step bench_matmul 20 "" "$bin/bench_matmul" --rows $rows --dtype bf16 --seconds 0.3
    step bench 30 "" "$bin/bench" "${bench[@]}"
    # Last, as it tells nothing before it has ended. One step of one micro-batch, as ncu runs a kernel at a time; clocks
    # and caches as they are.
    step kernel_counters 35 "$(first "$no_ncu" "$no_gpu")" "${table[@]}" "$work/kernel_counters.csv" \
        "$ncu" --csv --page raw --print-units base --log-file "$work/kernel_counters.csv" \
        --metrics gpu__time_duration.sum,dram__bytes.sum --nvtx --nvtx-include "step/" \
        --clock-control none --cache-control none \
        "${train[@]}" -b "$batch" -d "$((batch * length))" -x 1
}

correctness() {
    local kernels="[kernels]" rest="~[.]~[kernels]~[ranks]~[mpi]~[local]~[run]~[layout]~[bf16_training]"
    local runs="[run]~[ranks]~[mpi]" ranks="[ranks],[mpi],[local]" small=(-d $((4 * length)) -x 4 -b 2)
    if $rehearse; then
        kernels="[gelu]" rest="[schedule],[shard],[model_config]" runs="*dry-run*,a run trains*"
        ranks="[local],integer gradients of processes*,what a rank refuses*"
    fi
    # Nothing is timed, and programs share the cores: threads that spin while they wait would hold up the others.
    export OMP_WAIT_POLICY=passive
    build
    machine
    data
    # At once, on the many cores of such a machine; the sanitizer's tools below, too.
    start tests_ranks 165 "" "$bin/tests" "$ranks" --durations yes
    start tests_kernels 0 "" "$bin/tests" "$kernels" --durations yes
    start tests_host 0 "" "$bin/tests" "$rest" --durations yes
    start tests_runs 0 "" "$bin/tests" "$runs" --durations yes
    join
    step ranks_mpi 15 "$no_mpi" "${mpirun[@]}" -np 2 "${train[@]}" "${small[@]}" -z 1 --comm mpi
    step ranks_nccl 15 "$no_gpu" "${train[@]}" "${small[@]}" --comm nccl
    # NCCL lets no two ranks of a host share a GPU; here each has a host, and they talk over sockets. Two numbers have
    # one sum, so losses are those over MPI.
    local no_two
    no_two=$(first "$no_mpi" "$no_hosts" "$no_gpu")
    step ranks_nccl_2 25 "$no_two" env NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/logs/nccl.%h" "${mpirun[@]}" -np 2 \
        dev/gpu_check/own_host.sh "${train[@]}" "${small[@]}" -z 1 --comm nccl
    step same_losses 0 "$no_two" dev/gpu_check/same_losses.sh "$work"/logs/ranks_{mpi,nccl_2}.log
    # Of libraries' kernels racecheck and synccheck report what is none, as they do not know all of wgmma and of the
    # bulk copies, and initcheck sees no write of a kernel that it leaves out: so that one gets cases without libraries.
    local ours=(--kernel-name kns=7kernels)
    local tiny="loss and gradients of a whole model equal fp64,bf16 follows fp64*,plain attention*,flash attention*"
    local alone="[embedding],[layernorm],[gelu],[bias_gradient],[classifier],[grad_norm],[adamw],[sketch],"
    alone+="[decode],[few_rows],[kernels][onebit]~[large],flash attention*"
    step planted_build 10 "$no_nvcc" "$nvcc" -arch=sm_80 -o "$work/planted_faults" \
        dev/gpu_check/planted_faults.cu
    step planted_faults 20 "$(first "$no_sanitizer" "$no_gpu")" dev/gpu_check/planted_faults.sh \
        "$work/planted_faults" "${sanitizer:-none}" "${ours[@]}"
    local why_not port=50000
    why_not=$(first "$no_sanitizer" "$no_gpu")
    # check NAME LIMIT TOOL [OPTIONS...] PROGRAM CASES; each reaches its programs by ports of its own
    check() {
        port=$((port + 100))
        start "$1" "$2" "$why_not" "$sanitizer" --error-exitcode 9 --port $port --launch-timeout 60 --tool "${@:3}" \
            --durations yes
    }
    check memcheck 100 memcheck --report-api-errors no "$bin/tests" "[kernels]~[matmul],[model]"
    check memcheck_products 0 memcheck --report-api-errors no "$bin/tests" "[matmul]"
    check racecheck 0 racecheck "${ours[@]}" "$bin/tests" "$tiny,$alone"
    check synccheck 0 synccheck "${ours[@]}" "$bin/tests" "$tiny,$alone"
    check initcheck 0 initcheck --check-api-memory-access no "$bin/tests" "$alone"
    join
}

# ---- what a log comes to

# Of a run's steps, leaving out the first ones, which choose algorithms and fill caches: the one of median time.
median_step() {
    awk -F ' *[|] *' '/^step .* MFU / { mfu = 1 }
        /^step [0-9]/ && NF >= 8 && ++n > 3 { print $5 " ms, " $6 " tok/s, MFU " (mfu ? $7 : "n/a") }' \
        "$1" 2>/dev/null | sort -n |
        awk '{ line[NR] = $0 } END { if (NR) print "median " line[int((NR + 1) / 2)] " of " NR " steps" }'
}
note() {
    local log=$work/logs/$1.log
    case $1 in
        training | ranks_*) median_step "$log" ;;
        kernel_times | kernel_counters) grep -E '^(\| all|a whole step)' "$log" | tail -n 1 | tr -d '|' ;;
        batch) echo "$(cat "$work/batch" 2>/dev/null || echo no) x $length tokens fit" ;;
        memory_in_use) tail -n 1 "$log" ;;
        *check*) echo "$(grep -cE '^[0-9.]+ s: ' "$log") cases; $(grep -oE '(ERROR|RACECHECK) SUMMARY.*' "$log" |
            tail -n 1)" ;;
        tests_*)
            echo "$(grep -E '^(All tests passed|test cases:)' "$log" | tail -n 1)$(
                grep -oE 'skipped: .*' "$log" | sort | uniq -c | sed 's/^ */; /' | tr -d '\n')"
            ;;
        *) grep -E '^(median |CUDA in |NOT FOUND)' "$log" | cut -c 1-300 | tail -n 1 ;;
    esac
}
details() {
    local log=$work/logs/$1.log
    case $1 in
        build*)
            grep -iE 'warning|error' "$log" | grep -v -- ' -Wall ' | head -n 20
            tail -n 2 "$log" | cut -c 1-150
            ;;
        tests_*) grep -E 'FAILED:|^[0-9.]+ s: ' "$log" | sort -rn | uniq | head -n 20; tail -n 4 "$log" ;;
        *check*) grep -A 4 -E '^=+ (Error|Warning|Invalid|Barrier|Race|Uninit)' "$log" | head -n 60; tail -n 4 "$log" ;;
        training | ranks_*) grep -vE '^(step|\$) ' "$log" | head -n 60; grep -E '^step ' "$log" | tail -n 3 ;;
        kernel_times | kernel_counters) grep -E '^(\||a whole step|error:)' "$log" ;;
        data | batch | memory_in_use | machine) ;;
        *) tail -n +2 "$log" | tail -n 150 ;;
    esac
}

if $list; then
    if [ "$part" = 1 ]; then speed; else correctness; fi
    exit 0
fi
begin "$($rehearse && echo "Rehearsal on a CPU" || echo "GPU check"), part $part, $(date -u +%Y-%m-%dT%H:%MZ), \
$(git describe --always --dirty 2>/dev/null || echo "no git")"
if ! $rehearse; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit --format=csv |
        sed 's/^/    /' | tee -a "$folder/summary.md"
fi
say "    $("$nvcc" --version 2>/dev/null | grep release || echo "no nvcc"); $(${CXX:-g++} --version | head -n 1);" \
    "$(make --version | head -n 1); $(nproc) cores; $(uname -sr)"
say
if [ "$part" = 1 ]; then
    speed
    milliseconds() { note "$1" 2>/dev/null | awk '{ print $2 }'; }
    say
    say "    $model, $batch x $length tokens, $tokens tokens a step, bf16:" \
        "$(for run in training peer_flash peer_cudnn; do
            echo "$run $([ -e "$work/logs/$run.log" ] && milliseconds $run || echo n/a) ms;"
        done | xargs)"
else
    correctness
fi
rm -f "$shard"
conclude
