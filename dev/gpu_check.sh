#!/usr/bin/env bash
# gpu_check.sh 1|2|3 [--rehearse] [--list] [FOLDER] - measures and tests the CUDA build on this machine's GPU, and
# writes the results to FOLDER/part1, part2 or part3 (default: build/gpu_check)
#
#   1   numbers, then speed: losses against PyTorch's, GPT-2 124M, its kernels, PyTorch's speed, every operation
#   2   correctness: all tests, ranks over MPI and NCCL, compute-sanitizer
#   3   more speed: batch sizes from 1 to 64, what autotuning gains, GPT-2 350M, traces
#
# Needs a GPU and no network. The programs come from build/cuda, or from the archive that gpu_check/pack.sh makes on
# another machine, build/packed/gpu_check.tar.xz, if they were built from these sources and start. Otherwise BUILD=1 in
# the environment builds them for the GPU of this machine, which needs nvcc and g++ and takes minutes. After that a part
# takes at most 9 minutes. Every step has a time limit; if one fails, the others still run. A part writes three files:
# summary.md continuously, logs.tar.gz and results.tar.gz after every step (gpu_check/steps.sh). --rehearse runs the
# same steps without a GPU, with the CPU build, at tiny sizes. --list prints the steps and their limits in seconds, and
# runs nothing.
#
# Exit codes: 0 every step that ran passed, 1 a step failed, 2 there is no GPU, no programs that start, or the command
# line is wrong.
set -uo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../scripts/help.sh"
usage() { refuse "$1; expected gpu_check.sh 1|2|3 [--rehearse] [--list] [FOLDER]"; }
rehearse=false list=false part='' folder=''
for argument in "$@"; do
    case $argument in
        --rehearse) rehearse=true ;;
        --list) list=true ;;
        -*) usage "unknown option \"$argument\"" ;;
        *) if [ -z "$part" ]; then part=$argument; elif [ -z "$folder" ]; then folder=$argument;
            else usage "unexpected argument \"$argument\""; fi ;;
    esac
done
[[ $part =~ ^[123]$ ]] || usage "the part is \"$part\""
folder=$(realpath -m "${folder:-$(dirname "$0")/../build/gpu_check}")/part$part
cd "$(dirname "$0")/.." || exit 1
work=$PWD/build/gpu_check_work memory=$work
$rehearse || $list || nvidia-smi -L 2>/dev/null | grep -q GPU || refuse "nvidia-smi finds no GPU; expected one of" \
    "compute capability 8.0 or later; --rehearse runs the steps without one"
# shellcheck source=dev/gpu_check/steps.sh
. dev/gpu_check/steps.sh
# shellcheck source=dev/gpu_check/report.sh
. dev/gpu_check/report.sh

# ---- the tools of this machine, and the first reason why a step cannot run, if any

first() { local reason; for reason in "$@"; do [ -z "$reason" ] || { echo "$reason"; return; }; done; }
found() { compgen -G "$1" | sort -V | tail -n 1; }
lacks() { [ -n "$1" ] || echo "no $2"; }

# PyTorch uses its own libraries, and finds the driver where the caller's programs do.
export CALLERS_LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}
# shellcheck source=/dev/null
if [ -e build/deps/env.sh ]; then . build/deps/env.sh; fi
nvcc=$(command -v nvcc || found "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
toolkit=${CUDA_HOME:-/usr/local/cuda}
if [ -n "$nvcc" ]; then toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")"); fi
ncu=$(command -v ncu || found "$toolkit/bin/ncu" || found "/opt/nvidia/nsight-compute/*/ncu")
sanitizer=$(command -v compute-sanitizer || found "$toolkit/bin/compute-sanitizer")
# NVIDIA's packages for python3, which may be in several site-packages.
mapfile -t packages < <(python3 -c 'import glob, nvidia
for path in nvidia.__path__:
    for package in sorted(glob.glob(glob.escape(path) + "/*/")):
        print(package.rstrip("/"))' 2>/dev/null)
for cupti in "$toolkit" "$toolkit/extras/CUPTI" "${packages[@]}"; do
    cupti_library=$(found "$cupti/lib*/libcupti.so*")
    if [ -e "$cupti/include/cupti.h" ] && [ -n "$cupti_library" ]; then break; fi
    cupti_library=''
done
no_nvcc=$(lacks "$nvcc" nvcc)
no_gpu=$(if $rehearse; then echo "needs a GPU"; fi)
# Only located, because the first import on a machine may take half a minute of disk reads.
no_torch=$(python3 -c 'from importlib.util import find_spec
find_spec("torch").name, find_spec("numpy").name' 2>/dev/null || echo "no python3 with torch and numpy")
no_ncu=$(lacks "$ncu" ncu)
no_cupti=$(first "$(lacks "$cupti_library" "CUPTI in the toolkit or in python3's packages")" \
    "$(lacks "$(command -v "${CXX:-g++}")" "${CXX:-g++} to compile kernel_times.cpp")")
no_sanitizer=$(lacks "$sanitizer" compute-sanitizer)
python3 dev/gpu_check/loopback.py
no_hosts=$(unshare --uts true 2>/dev/null || echo "unshare --uts is not permitted")

# ---- sizes: GPT-2 124M on a GPU; sizes that take seconds on a CPU

bin=build/cuda model=d12 length=1024 batches="64 32 16 8 4 2 1" accumulated=8 steps=200 peer_steps=23
layer=custom:l=2,h=12,c=768,t=1024 larger=d24
bench=(--seconds 0.1 --dtype bf16)
if $rehearse; then
    bin=build/cpu model=custom:l=2,h=2,c=64,t=64 length=32 batches="4 2" accumulated=2 steps=8 peer_steps=5
    layer=$model larger=custom:l=3,h=2,c=64,t=64
    bench=(--seconds 0.001 gelu)
    export OMP_WAIT_POLICY=passive  # other programs use the same cores
fi
shard=$work/text.bin
# The first run autotunes and stores the results here, so that profiled runs do not autotune.
choices=$work/results/choices.json
train=("$bin/train_gpt2" -i "$shard" -t "$length" -v 0 --dtype bf16 --tune-file "$choices")
# Ranks of one machine need no network interface, and a sandbox may forbid a process to read the memory of another.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma  # Open MPI 4 and 5
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun=(mpirun --bind-to none --oversubscribe)

# shellcheck source=dev/gpu_check/build.sh
. dev/gpu_check/build.sh

# The shard of text-like tokens, and the largest micro-batch whose memory plan fits: `batch`, of `tokens` tokens. Fails
# if none fits: then there is nothing to measure.
data() {
    step data 15 "" "$bin/random_shard" "$shard" $((${batches%% *} * length * (steps + 20) * accumulated + 1))
    # shellcheck disable=SC2016
    step batch 10 "" bash -c 'for b in $1; do "${@:3}" -b $b --dry-run && echo $b >"$2" && exit; done; exit 1' - \
        "$batches" "$work/batch" "${train[@]}" -e "$model" -x 1
    batch=$(cat "$work/batch" 2>/dev/null || echo 1)
    tokens=$((batch * length))
    $list || [ -e "$work/batch" ]
}

# A description of the machine, for readers of the results.
machine() {
    # shellcheck disable=SC2016
    step machine 15 "" timeout -k 2 20 bash -c '
        uname -a; nproc; free -g; df -h . /tmp /dev/shm; grep -m 1 "model name" /proc/cpuinfo; ulimit -a
        grep . /sys/class/net/*/operstate; ldd "$1/train_gpt2"; "$1/train_gpt2" --version
        env | grep -E "^(HOME|PATH|LD_|CUDA|NVIDIA|NCCL|OMP)"; nvidia-smi topo -m; nvidia-smi -q
        true' - "$bin"
}
# Last, because pip reads many files: seconds on a machine that has just started.
packages_of_python() {
    step packages 0 "" sh -c 'python3 -m pip list 2>/dev/null | grep -iE "torch|triton|nvidia"; true'
}

# kernel_times NAME LIMIT TRAIN-ARGUMENTS...: results/NAME.tsv, NAME.trace.tsv and their table; builds the library once
kernel_times_library() {
    step kernel_times_build 10 "$no_cupti" "${CXX:-g++}" -std=c++20 -O1 -shared -fPIC -I"$cupti/include" \
        -I"$toolkit/include" -o "$work/kernel_times.so" dev/gpu_check/kernel_times.cpp "$cupti_library" \
        -Wl,-rpath,"$(dirname "$cupti_library")"
}
# shellcheck disable=SC2016
table=(bash -c '"${@:2}" && dev/gpu_check/kernel_table.py "$1"' -)
kernel_times() {
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" "$(first "$no_cupti" "$no_gpu")" env CUDA_INJECTION64_PATH="$work/kernel_times.so" \
        KERNEL_TIMES="$work/results/$name.tsv" KERNEL_TRACE="$work/results/$name.trace.tsv" \
        "${table[@]}" "$work/results/$name.tsv" "${train[@]}" "$@" -x 5
}

# shellcheck source=dev/gpu_check/speed.sh
. dev/gpu_check/speed.sh
# shellcheck source=dev/gpu_check/correctness.sh
. dev/gpu_check/correctness.sh
# shellcheck source=dev/gpu_check/sizes.sh
. dev/gpu_check/sizes.sh
steps_of_part() {
    machine
    case $part in
        1) speed ;;
        2) correctness ;;
        3) sizes ;;
    esac
    packages_of_python
}

if $list; then
    steps_of_part
    exit 0
fi
begin "$($rehearse && echo "Rehearsal on a CPU" || echo "GPU check"), part $part, $(date -u +%Y-%m-%dT%H:%MZ), \
$(git describe --always --dirty 2>/dev/null || echo "no git")"
if ! $rehearse; then
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit --format=csv |
        sed 's/^/    /' | tee -a "$folder/summary.md"
fi
say "    $("$nvcc" --version 2>/dev/null | grep release || echo "no nvcc");" \
    "$(${CXX:-g++} --version 2>/dev/null | head -n 1);" \
    "$(make --version 2>/dev/null | head -n 1); $(nproc) cores; $(uname -sr)"
say
# For checkpoints that are removed at once: on a disk their fsync takes seconds.
if [ "$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt $((8 << 20)) ] 2>/dev/null &&
    in_memory=$(mktemp -d /dev/shm/gpu_check.XXXXXX); then
    memory=$in_memory
    trap 'rm -rf "$memory"' EXIT
fi
build
steps_of_part
rm -rf "$shard" "$work"/runs/*/step_*
conclude
