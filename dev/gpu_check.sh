#!/usr/bin/env bash
# gpu_check.sh [--rehearse] [--list] [-o FOLDER] 1|...|5|STEP[=SECONDS]... - measures and tests the CUDA build on this
# machine's GPU, and writes the results to FOLDER/part1 to part5 or, of steps, FOLDER/steps (build/gpu_check)
#
#   1      numbers, then speed, 5 minutes: losses against PyTorch's, GPT-2 124M, its kernels, PyTorch's speed
#   2      correctness, 4 minutes: the kernels' tests, NCCL, compute-sanitizer
#   3      what these leave out, 4 minutes: accumulation, operations, Muon, llm.c, two ranks over NCCL, more checks
#   4, 5   7 and 5 minutes: what each way to a faster step brings (levers.py), in ms and J; GPT-2 1558M
#   STEP   of a part (--list); it runs with the steps whose results it needs, within SECONDS instead of its limit
#
# Needs a GPU and no network. The programs come from build/cuda, or from the archive that gpu_check/pack.sh makes on
# another machine, build/packed/gpu_check.tar.xz, if they were built from these sources and start. Otherwise BUILD=1 in
# the environment builds them for the GPU of this machine, which needs nvcc and g++ and takes minutes. Every step has a
# time limit; if one fails, the others still run. After every step summary.md and results.tar.gz are written.
# --rehearse runs the same steps without a GPU, with the CPU build, at tiny sizes. --list prints the steps, their limits
# in seconds and the tests that they run, and runs nothing.
#
# Exit codes: 0 every step that ran passed, 1 a step failed, 2 there is no GPU, no programs that start, or the command
# line is wrong.
set -uo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../scripts/help.sh"
each_once "$@"
rehearse=false list=false words=() folder=$(dirname "$0")/../build/gpu_check
while [ $# -gt 0 ]; do
    case $1 in
        --rehearse) rehearse=true ;;
        --list) list=true ;;
        -o) [[ ${2--} != -* ]] || refuse "-o has no value; expected -o FOLDER"; folder=$2; shift ;;
        -*) refuse "unknown option \"$1\"; see gpu_check.sh --help" ;;
        *) words+=("$1") ;;
    esac
    shift
done
folder=$(realpath -m "$folder")
cd "$(dirname "$0")/.." || exit 1
work=$PWD/build/gpu_check_work memory=$work/memory
# shellcheck source=dev/gpu_check/steps.sh
. dev/gpu_check/steps.sh
# shellcheck source=dev/gpu_check/build.sh
. dev/gpu_check/build.sh
# shellcheck source=dev/gpu_check/plan.sh
. dev/gpu_check/plan.sh

# ---- the tools of this machine, and the first reason why a step cannot run, if any

first() { local reason; for reason in "$@"; do [ -z "$reason" ] || { echo "$reason"; return; }; done; }
found() { for pattern; do compgen -G "$pattern" | sort -V | tail -n 1 | grep . && return; done; }
lacks() { [ -n "$1" ] || echo "no $2"; }

# PyTorch uses its own libraries, and finds the driver where the caller's programs do.
export CALLERS_LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}
# shellcheck source=/dev/null
if [ -e build/deps/env.sh ]; then . build/deps/env.sh; fi
nvcc=$(command -v nvcc || found "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
toolkit=${CUDA_HOME:-/usr/local/cuda}
if [ -n "$nvcc" ]; then toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")"); fi
# NVIDIA's packages for python3, which may be in several site-packages.
mapfile -t packages < <(python3 -c 'import glob, nvidia
for path in nvidia.__path__:
    for package in sorted(glob.glob(glob.escape(path) + "/*/")):
        print(package.rstrip("/"))' 2>/dev/null)
roots=("$toolkit" /usr/local/cuda* "${packages[@]}")
sanitizer=$(command -v compute-sanitizer || found "${roots[@]/%//bin/compute-sanitizer}" \
    "${roots[@]/%//compute-sanitizer/compute-sanitizer}")
for cupti in "${roots[@]}" "$toolkit/extras/CUPTI"; do
    cupti_library=$(found "$cupti/lib*/libcupti.so*")
    if [ -e "$cupti/include/cupti.h" ] && [ -n "$cupti_library" ]; then break; fi
    cupti_library=''
done
no_gpu=$(if $rehearse; then echo "needs a GPU"; fi)
# Only located, because the first import on a machine may take half a minute of disk reads.
no_torch=$(python3 -c 'from importlib.util import find_spec
find_spec("torch").name, find_spec("numpy").name' 2>/dev/null || echo "no python3 with torch and numpy")
no_cupti=$(first "$(lacks "$cupti_library" "CUPTI in the toolkit or in python3's packages")" \
    "$(lacks "$(command -v "${CXX:-g++}")" "${CXX:-g++} to compile kernel_times.cpp")")
no_sanitizer=$(first "$(lacks "$sanitizer" compute-sanitizer)" "$no_gpu")
no_hosts=$(unshare --uts true 2>/dev/null || echo "unshare --uts is not permitted")

# Ranks of one machine need no network interface, and a sandbox may forbid a process to read the memory of another.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma  # Open MPI 4 and 5
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_plm_rsh_agent=${OMPI_MCA_plm_rsh_agent-false}  # mpirun does not start where it finds no ssh

choose "${words[@]}"
if $list; then
    all_steps
    echo "all $total"
    exit 0
fi
gpu=$($rehearse || nvidia-smi -L 2>/dev/null | grep GPU)
$rehearse || [ -n "$gpu" ] || refuse "nvidia-smi finds no GPU; expected one of compute capability 8.0 or later;" \
    "--rehearse runs the steps without one"
folder=$folder/$name_of_call
make_folder -o "$folder"
begin "$($rehearse && echo "Rehearsal on a CPU" || echo "GPU check"), ${words[*]}, $(date -u +%Y-%m-%dT%H:%MZ), \
$(git describe --always --dirty 2>/dev/null || echo "no git")"
# For checkpoints that are removed at once: on a disk their fsync takes seconds.
if [ "$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -ge $((4 << 20)) ] 2>/dev/null &&
    in_memory=$(mktemp -d /dev/shm/gpu_check.XXXXXX); then memory=$in_memory; fi
background=()
# shellcheck disable=SC2154
trap 'kill "${background[@]}" 2>/dev/null; rm -rf "$memory"' EXIT
if ! $rehearse; then
    # Without a client the driver would start anew with every program, which takes seconds.
    nvidia-smi --query-gpu=timestamp,driver_version,power.draw,power.limit,clocks.sm,temperature.gpu,memory.used \
        --format=csv -l 10 >"$work/results/gpu.csv" 2>&1 </dev/null &
    background+=($!)
fi
say "    ${gpu:-no GPU}; $("$nvcc" --version 2>/dev/null | grep release || echo "no nvcc");" \
    "$(${CXX:-g++} --version 2>/dev/null | head -n 1); $(nproc) cores; $(uname -sr)"
# On a small machine the loopback interface may be down, without which neither mpirun nor NCCL starts.
python3 -c 'import fcntl, socket, struct
def ioctl(request, flags): return fcntl.ioctl(socket.socket(), request, struct.pack("16sh14x", b"lo", flags))
flags = struct.unpack("16sh14x", ioctl(0x8913, 0))[1]  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
if not flags & 1: ioctl(0x8914, flags | 1)' 2>/dev/null || say "    the loopback interface cannot be brought up"
build
deadline=$SECONDS group=$SECONDS total=0
say "    $("$bin/train_gpt2" --version 2>&1 | head -n 1)"
all_steps
conclude
