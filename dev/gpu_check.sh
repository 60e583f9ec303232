#!/usr/bin/env bash
# gpu_check.sh [--rehearse] [--list] [-o FOLDER] 1|...|5|STEP[=SECONDS]... - measures and tests the CUDA build on this
# machine's GPU, and writes the results to FOLDER/part1 to part5 or, of steps, FOLDER/steps (build/gpu_check)
#
#   1      numbers, then speed, 5 minutes: losses against PyTorch's, GPT-2 124M, its kernels, PyTorch's speed
#   2      correctness, 6 minutes: the kernels' tests, compute-sanitizer
#   3      what these leave out, 3 minutes: accumulation, operations, Muon, llm.c, two ranks over NCCL
#   4, 5   7 and 5 minutes: what each way to a faster step brings (levers.py), in ms and J; GPT-2 1558M
#   STEP   of a part (--list), within SECONDS instead of its limit
#
# Needs a GPU and no network. The programs come from build/cuda, or from build/packed/gpu_check.tar.xz, the archive that
# gpu_check/pack.sh makes here or on another machine, if they were built from these sources and start. Every step has a
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
# $memory has the output folders of runs, whose logs are kept and checkpoints deleted.
work=build/gpu_check_work memory=build/gpu_check_work/memory deadline=0 failed=0 not_run=()
say() { tee -a "$folder/summary.md" <<<"$*"; }

# step NAME WHY-NOT COMMAND...: runs a step if it was chosen, unless WHY-NOT says why it cannot run here, for its limit
# and the unused time of earlier steps at most. If the machine is killed, only the running step is lost.
step() {
    local name=$1 why_not=$2 log=$work/logs/$1.log limit=${limits[$1]-} left status=0 verdict began=$SECONDS
    shift 2
    [ -n "$limit" ] || { not_run+=("$name"); return; }
    deadline=$((deadline + limit)) left=$((deadline - SECONDS))
    if $list; then
        echo "$name $limit $(grep -oE '(,?~?\[[a-z_]+\])+' <<<"$*" | xargs)"
    elif [ -n "$why_not" ]; then
        say "- **$name** skipped: $why_not"
        not_run+=("$name ($why_not)")
    else
        [ "$left" -ge 5 ] || left=5
        say "- **$name** started at $(date -u +%H:%M:%SZ), at most $left s: \`$*\`"
        echo "\$ $*" >"$log"
        timeout -k 5 "$left" "$@" >>"$log" 2>&1 </dev/null &
        wait $! || status=$?
        verdict=pass
        [ $status -eq 0 ] || { verdict="**fail** ($status)" failed=$((failed + 1)); }
        [[ $status != @(124|137) ]] || verdict="**time limit**"
        say "- **$name** $verdict, $((SECONDS - began)) s: $(results_of "$log" | paste -sd '; ')"
        { echo; grep -vE '^(step|\$) ' "$log" | tail -n 40 | cut -c 1-240 | sed 's/^/      /'; } >>"$folder/summary.md"
        archive
    fi
}

# The lines of a log that say its results; of a run the median step without the first three, which warm up caches.
results_of() {
    grep -E '^(error: |PASS|FAIL|median |a whole step|total average|All tests|test cases:)|(ERROR|RACECHECK) SUMMARY' \
        "$1" | tail -n 4 | cut -c 1-300
    awk '/^step .* MFU / { mfu = 1 }
        /^step [0-9]/ && $5 ~ /e[-+]/ && ++n > 3 { print $7 " ms, " $8 " tok/s, MFU " (mfu ? $9 : "n/a") }' "$1" |
        sort -n | awk '{ line[NR] = $0 } END { if (NR) print "median " line[int((NR + 1) / 2)] " of " NR " steps" }'
}

# Replaces the archive, with logs of runs.
archive() {
    find "$memory" -name 'step_*' -prune -exec rm -rf {} +
    (cd "$memory" && find . -regex '.*\.\(jsonl?\|log\)' -print0 | xargs -0r cp --parents -t "$OLDPWD/$work/results")
    find $work/logs -size +2M -exec sh -c 'tail -c 1800000 "$0" >"$0.end" && mv "$0.end" "$0"' {} \;
    tar -C $work -czf "$folder/results.new" logs results && mv "$folder/results.new" "$folder/results.tar.gz"
}

# ---- the tools of this machine

first() { local reason; for reason in "$@"; do [ -z "$reason" ] || { echo "$reason"; return; }; done; }
found() { for pattern; do compgen -G "$pattern" | sort -V | tail -n 1 | grep . && return; done; }
lacks() { [ -n "$1" ] || echo "no $2"; }
# PyTorch uses its own libraries, and finds the driver where the caller's programs do.
export CALLERS_LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}
nvcc=$(command -v nvcc || found "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
toolkit=$(if [ -n "$nvcc" ]; then realpath "$(dirname "$(readlink -f "$nvcc")")/.."; else echo /usr/local/cuda; fi)
# NVIDIA's packages for python3, which may be in several site-packages.
mapfile -t packages < <(python3 -c 'import glob, nvidia
for path in nvidia.__path__: print(*glob.glob(glob.escape(path) + "/*"), sep="\n")' 2>/dev/null)
roots=("$toolkit" /usr/local/cuda* "${packages[@]}")
sanitizer=$(command -v compute-sanitizer || found "${roots[@]/%//bin/compute-sanitizer}" \
    "${roots[@]/%//compute-sanitizer/compute-sanitizer}")
cupti=$(found "${roots[@]/%//include/cupti.h}" "$toolkit/extras/CUPTI/include/cupti.h")
cupti=${cupti%/include/cupti.h} cupti_library=$(found "${cupti:-none}/lib*/libcupti.so*")
no_gpu=$(if $rehearse; then echo "needs a GPU"; fi)
# Only located, because the first import on a machine may take half a minute of disk reads.
no_torch=$(python3 -c 'from importlib.util import find_spec
find_spec("torch").name, find_spec("numpy").name' 2>/dev/null || echo "no python3 with torch and numpy")
no_sanitizer=$(first "$(lacks "$sanitizer" compute-sanitizer)" "$no_gpu")
# shellcheck source=/dev/null
if [ -e build/deps/env.sh ]; then . build/deps/env.sh; fi
# Ranks of one machine need no network interface, and a sandbox may forbid a process to read the memory of another.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma  # Open MPI 4 and 5
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_plm_rsh_agent=${OMPI_MCA_plm_rsh_agent-false}  # mpirun does not start where it finds no ssh

# shellcheck source=dev/gpu_check/plan.sh
. dev/gpu_check/plan.sh
choose "${words[@]}"
if $list; then
    all_steps
    echo "all $deadline"
    exit 0
fi

# ---- the programs

programs_start() { build/cuda/train_gpt2 --version && build/cuda/tests --help; } >/dev/null 2>&1
sources=$(dev/gpu_check/sources.sh)
is_current() { [ "$(cat build/cuda/gpu_check.sources 2>/dev/null)" = "$sources" ]; }
if $rehearse; then
    # One translation unit per folder, as for the tests on CPUs.
    make -s -j"$(nproc)" DEVICE=cpu UNITE="kernels llmc test" build/cpu/train_gpt2 tools tests >&2 || exit 1
else
    gpu=$(nvidia-smi -L 2>/dev/null | grep GPU) || refuse "nvidia-smi finds no GPU; expected one of compute" \
        "capability 8.0 or later; --rehearse runs the steps without one"
    # Not with tar, which needs the program xz.
    is_current || python3 -m tarfile -e build/packed/gpu_check.tar.xz . 2>/dev/null
    # Programs built on another machine do not have this machine's paths of CUDA's libraries, also of those that NVRTC
    # opens by name; build/deps has libgomp.
    programs_start || for libraries in "$toolkit/lib64" "${packages[@]/%//lib}" "$PWD/build/deps/lib"; do
        [ ! -d "$libraries" ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries
    done
    is_current && programs_start || refuse "the programs in build/cuda are not of these sources, $sources, or do not" \
        "start; make them with dev/gpu_check/pack.sh, here or on another machine; missing:" \
        "$(ldd build/cuda/train_gpt2 build/cuda/tests 2>&1 | awk '/not found/ { print $1 }' | sort -u | xargs)"
fi

# ---- the call

folder=$folder/$(if [[ ${words[*]} = [1-5] ]]; then echo "part${words[*]}"; else echo steps; fi)
make_folder -o "$folder"
rm -rf "$folder"/{summary.md,results.tar.gz} $work
# For checkpoints that are removed at once: on a disk their fsync takes seconds.
[ "$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -lt $((4 << 20)) ] ||
    memory=$(mktemp -d /dev/shm/gpu_check.XXXXXX)
mkdir -p $work/{logs,results} "$memory" || exit 1
# shellcheck disable=SC2046
trap 'kill $(jobs -p) 2>/dev/null; wait; archive; rm -rf "$memory"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
say "# $(if $rehearse; then echo "Rehearsal on a CPU"; else echo "GPU check"; fi), ${words[*]}," \
    "$(date -u +%Y-%m-%dT%H:%MZ), $(git describe --always --dirty 2>/dev/null || echo "no git")"
say
# Without a client the driver would start anew with every program, which takes seconds.
[ -n "$no_gpu" ] || nvidia-smi --query-gpu=power.draw,clocks.sm --format=csv -l 10 >$work/results/gpu.csv </dev/null &
say "    ${gpu:-no GPU}; $("$nvcc" --version 2>/dev/null | grep release || echo "no nvcc"); $(nproc) cores"
say "    $("$bin/train_gpt2" --version 2>&1 | head -n 1)"
{
    uname -a; free -g; df -h . /dev/shm; ldd $bin/train_gpt2; timeout 20 nvidia-smi -q
    env | grep -E '^(PATH|LD_|CUDA|NVIDIA|NCCL|OMP)'
} >$work/results/machine.txt 2>&1
# On a small machine the loopback interface may be down, without which neither mpirun nor NCCL starts.
python3 -c 'import fcntl, socket, struct
def ioctl(request, flags): return fcntl.ioctl(socket.socket(), request, struct.pack("16sh14x", b"lo", flags))
flags = struct.unpack("16sh14x", ioctl(0x8913, 0))[1]  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
if not flags & 1: ioctl(0x8914, flags | 1)' 2>/dev/null || say "    the loopback interface cannot be brought up"
SECONDS=0
all_steps
say "not run: $(printf '%s, ' "${not_run[@]}" | sed 's/, $//')"
say "$folder/summary.md: $failed failed, $SECONDS s of at most $deadline; results.tar.gz:" \
    "$(du -k "$folder/results.tar.gz" 2>/dev/null | cut -f 1) KiB"
[ $failed -eq 0 ]
