#!/usr/bin/env bash
# gpu_check.sh [--rehearse] [FOLDER] - builds for CUDA, tests and measures on this machine's GPU, and writes it all down
# in FOLDER (build/gpu_check)
#
# Needs nvcc, g++ and a GPU; no network (scripts/bundle_deps.sh gathers what else the build needs, make too,
# beforehand). Takes 9 minutes at most: every step has a limit of its own and none starts after that time. A step that
# fails stops nothing. FOLDER gets summary.md, written as it goes, and at the end logs.tar.gz with a log of every step.
# --rehearse needs no GPU: it compiles for CUDA where nvcc is, then goes through the same steps with the CPU build at
# tiny sizes.
#
# Exit codes: 0 every step that ran passed, 1 one did not, 2 there is no GPU or the command line is wrong.
set -uo pipefail
rehearse=false folder=
for argument in "$@"; do
    case $argument in
        --rehearse) rehearse=true ;;
        -*) echo "error: \"$argument\" is no option; expected [--rehearse] [FOLDER]" >&2; exit 2 ;;
        *) folder=$argument ;;
    esac
done
[ -n "$folder" ] && folder=$(realpath -m "$folder")
cd "$(dirname "$0")/.."
folder=${folder:-$PWD/build/gpu_check}
if ! $rehearse && [ -z "$(nvidia-smi -L 2>/dev/null | grep GPU)" ]; then
    echo "error: nvidia-smi finds no GPU; expected one of compute capability 8.0 or later;" \
        "--rehearse runs what needs none" >&2
    exit 2
fi
logs=$folder/logs
rm -rf "$logs" "$folder/summary.md" "$folder/logs.tar.gz"
mkdir -p "$logs" || exit 1

readonly budget=540
failed=0
device=$($rehearse && echo cpu || echo cuda)
$rehearse && export OMP_WAIT_POLICY=passive  # threads that spin would starve one another where others use the cores too
[ -e build/deps/env.sh ] && source build/deps/env.sh
bin=build/$device
nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null)

say() { echo "$*" | tee -a "$folder/summary.md"; }
row() { say "| $1 | $2 | $3 | $4 |"; }

# step NAME SECONDS COMMAND...: runs it, at most so long, its output to NAME.log; a row of the table. Its exit status.
steps=()
step() {
    local name=$1 limit=$2 left=$((budget - SECONDS)) began=$SECONDS status verdict note
    shift 2
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$limit" -lt 5 ]; then row "$name" "not run" "-" "the $budget seconds were used up"; return 1; fi
    steps+=("$name")
    echo "\$ $*" >"$logs/$name.log"
    timeout -k 5 "$limit" "$@" >>"$logs/$name.log" 2>&1 </dev/null
    status=$?
    case $status in
        0) verdict=pass ;;
        124 | 137) verdict="**time limit**" ;;
        *) verdict="**fail** ($status)" ;;
    esac
    [ $status -eq 0 ] || failed=$((failed + 1))
    note=$(grep -E '^(All tests passed|test cases:|median |={9} (ERROR|RACECHECK) SUMMARY)' "$logs/$name.log" |
        tail -n 1)
    row "$name" "$verdict" "$((SECONDS - began)) s" "${note:-$(median_ms "$name")}"
    return $status
}
skip() { row "$1" skipped - "$2"; }

# median_ms NAME: of a training log's steps, leaving out the first ones, which choose algorithms and fill caches.
median_ms() {
    sed -n 's/^step .* loss .* | \([0-9.]*\) ms | .*/\1/p' "$logs/$1.log" 2>/dev/null | tail -n +4 | sort -n |
        awk '{ ms[NR] = $1 } END { if (NR) print "median " ms[int((NR + 1) / 2)] " ms" }'
}

# --- the machine
commit=$(git describe --always --dirty 2>/dev/null || echo "no git")
say "# $($rehearse && echo "Rehearsal on a CPU" || echo "GPU check"), $(date -u +%Y-%m-%dT%H:%MZ), $commit"
say
$rehearse ||
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm --format=csv |
        sed 's/^/    /' | tee -a "$folder/summary.md"
tools=$("$nvcc" --version 2>/dev/null | grep release || echo "no nvcc")
tools+="; $(${CXX:-g++} --version | head -n 1); $(make --version | head -n 1)"
say "    $tools; $(nproc) cores; $(uname -sr)"
say
say "| step | result | time | |"
say "|---|---|---|---|"

# --- build
if [ -n "$nvcc" ]; then
    step build_cuda 240 make -k -j"$(nproc)" DEVICE=cuda NVCC="$nvcc" build/cuda/train_gpt2 tools tests
else
    skip build_cuda "no nvcc"
fi
if $rehearse; then step build_cpu 400 make -j"$(nproc)" DEVICE=cpu build/cpu/train_gpt2 tools tests; fi

# --- correctness of every kernel, in both types, and of whole models
whole_models="loss and gradients of a whole model equal fp64,bf16 follows fp64*"  # every kernel in both types, tiny
if $rehearse; then
    step tests_attention 60 "$bin/tests" "[attention_methods],[attention_choice]" --durations yes
    step tests_kernels 60 "$bin/tests" "[gelu]"
    step tests_models 60 "$bin/tests" "$whole_models"
else
    step tests_attention 40 "$bin/tests" "[attention_methods],[attention_choice]" --durations yes
    step tests_kernels 70 "$bin/tests" --durations yes \
        "[embedding],[layernorm],[gelu],[bias_gradient],[attention],[classifier],[grad_norm],[adamw]"
    step tests_matmul 30 "$bin/tests" "[matmul]" --durations yes
    step tests_models 30 "$bin/tests" "[model],[accumulation],[memory_plan],[interrupt]" --durations yes
fi

# --- training, and the same in PyTorch, on the same random tokens
shard=$folder/random.bin train_steps=50 peer_steps=30 length=1024 init=d12
$rehearse && train_steps=8 peer_steps=5 length=32 init=custom:l=2,h=2,c=64,t=64
cat >"$folder/random_shard.cpp" <<'CPP'
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
int main(int, char** argv) {  // PATH TOKENS: ids below 50257 in llm.c's format
    std::int32_t header[256] = {20240520, 1, std::atoi(argv[2])};
    std::vector<std::uint16_t> ids(header[2]);
    std::uint64_t state = 1;
    for (auto& id : ids) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        id = std::uint16_t((state >> 33) % 50257);
    }
    std::FILE* file = std::fopen(argv[1], "wb");
    return !file || std::fwrite(header, 1, sizeof header, file) != sizeof header ||
           std::fwrite(ids.data(), 2, ids.size(), file) != ids.size() || std::fclose(file);
}
CPP
step data 20 bash -c '"${CXX:-g++}" -O1 -o "$1/random_shard" "$1/random_shard.cpp" && "$1/random_shard" "$2" "$3"' \
    - "$folder" "$shard" $((64 * length * (train_steps + 1) + 1))
batch=64
$rehearse && batch=4
train=("$bin/train_gpt2" -i "$shard" -e $init -t $length -v 0 --dtype bf16)
while [ $batch -gt 1 ] && ! timeout 30 "${train[@]}" -x $train_steps -b $batch --dry-run >"$logs/dry_run.log" 2>&1; do
    batch=$((batch / 2))
done
step training 75 "${train[@]}" -x $train_steps -b $batch
peer=(python3 dev/peer_pytorch.py -e $init -i "$shard" -b $batch -t $length -x $peer_steps --dtype bf16)
$rehearse && peer+=(--no-compile --device cpu)
if python3 -c 'import torch, numpy' 2>/dev/null; then
    step peer_pytorch 120 "${peer[@]}"
else
    skip peer_pytorch "no python3 with torch and numpy"
fi
for method in cudnn flash plain; do
    if $rehearse; then
        skip "training_$method" "needs a GPU"
    else
        step "training_$method" 30 "${train[@]}" -x 10 -b $batch --attention $method
    fi
done

# --- ranks: two share the GPU over MPI; one alone over NCCL
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if command -v mpirun >/dev/null; then
    mpirun=(mpirun --bind-to none --oversubscribe)
    small=(-i "$shard" -e $init -t $length -v 0 --dtype bf16 -x 4 -b 2)
    step ranks_mpi 45 "${mpirun[@]}" -np 2 "$bin/train_gpt2" "${small[@]}" -d $((4 * length)) -z 1 --comm mpi
    if $rehearse; then
        skip ranks_nccl "needs a GPU"
    else
        step ranks_nccl 30 "${mpirun[@]}" -np 1 "$bin/train_gpt2" "${small[@]}" --comm nccl
    fi
else
    skip ranks_mpi "no mpirun"
fi

# --- memory errors, races, barriers, uninitialised reads; the tools know least of cuDNN's kernels, which are NVIDIA's:
# only the first one sees them
sanitizer=$(command -v compute-sanitizer || ls "$(dirname "${nvcc:-/}")/compute-sanitizer" 2>/dev/null)
ours="$whole_models,plain attention follows fp64,flash attention follows fp64"
for tool in memcheck racecheck synccheck initcheck; do
    if $rehearse || [ -z "$sanitizer" ]; then
        skip $tool "$($rehearse && echo "needs a GPU" || echo "no compute-sanitizer")"
    else
        cases=$ours$([ $tool = memcheck ] && echo ",cuDNN attention follows fp64")
        step $tool 35 "$sanitizer" --tool $tool --error-exitcode 1 "$bin/tests" "$cases"
    fi
done

# --- speed of the parts
if $rehearse; then
    step bench 60 "$bin/bench" --seconds 0.001 --filter forward
    step bench_matmul 60 "$bin/bench_matmul" rows=32 0
else
    step bench 65 "$bin/bench" --seconds 0.1
    step bench_matmul 45 "$bin/bench_matmul" rows=8192 0.3
fi
$rehearse || step tests_runs 75 "$bin/tests" "[run]" --durations yes  # last: every case starts programs of its own

# --- what it comes to
number() { awk '{ print $2 }' <<<"$1"; }
ours_ms=$(number "$(median_ms training)") peer_ms=$(number "$(grep -E '^median ' "$logs/peer_pytorch.log" 2>/dev/null)")
say
ratio=$(awk -v ours="${ours_ms:-0}" -v theirs="${peer_ms:-0}" 'BEGIN {
    if (ours > 0 && theirs > 0) printf "%.2f", ours / theirs; else printf "n/a" }')
say "    $init, $batch x $length tokens, bf16, one step: train_gpt2 ${ours_ms:-n/a} ms, PyTorch ${peer_ms:-n/a} ms," \
    "ratio $ratio"
for name in "${steps[@]}"; do
    log=$logs/$name.log
    {
        echo
        echo "## $name"
        echo
        case $name in
            build_*)
                grep -iE 'warning|error' "$log" | grep -v -- ' -Wall ' | head -n 10
                grep -h '^CUDA in ' "$log"
                tail -n 2 "$log" | cut -c 1-150
                ;;
            tests_* | *check)
                head -n 1 "$log"
                grep -E 'FAILED:|^[0-9.]+ s: |^=====' "$log" | sort -rn | uniq | head -n 20
                tail -n 5 "$log"
                ;;
            training*) head -n 40 "$log" | grep -vE '^step '; grep -E '^step ' "$log" | tail -n 3 ;;
            peer_pytorch) head -n 1 "$log"; tail -n 6 "$log" ;;
            *) cat "$log" ;;
        esac | sed 's/^/    /'
    } >>"$folder/summary.md"
done
rm -f "$shard" "$folder"/random_shard*
tar -C "$folder" -czf "$folder/logs.tar.gz" logs && rm -rf "$logs"
echo "$folder/summary.md: $failed steps failed, $SECONDS s"
[ $failed -eq 0 ]
