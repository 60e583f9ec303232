#!/usr/bin/env bash
# gpu_check.sh [--rehearse] [FOLDER] - builds for CUDA, tests and measures on this machine's GPU, and writes it all down in FOLDER (build/gpu_check)
#
# Needs nvcc, g++, make and a GPU; no network (scripts/bundle_deps.sh gathers the headers beforehand). Takes 9 minutes at most: every step has a limit
# of its own and none starts after that time. A step that fails stops nothing. FOLDER gets one log a step and summary.md.
# --rehearse needs no GPU: it compiles for CUDA where nvcc is, then goes through the same steps with the CPU build at tiny sizes.
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
    echo "error: nvidia-smi finds no GPU; expected one of compute capability 8.0 or later; --rehearse runs what needs none" >&2
    exit 2
fi
mkdir -p "$folder" && rm -f "$folder"/*.log "$folder"/summary.md || exit 1

readonly budget=540
failed=0
device=$($rehearse && echo cpu || echo cuda)
$rehearse && export OMP_WAIT_POLICY=passive  # threads that spin would starve one another where others use the cores too
bin=build/$device
nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null)

say() { echo "$*" | tee -a "$folder/summary.md"; }
row() { say "| $1 | $2 | $3 | $4 |"; }

# step NAME SECONDS COMMAND...: runs it, at most so long, its output to NAME.log; a row of the table. Its exit status.
step() {
    local name=$1 limit=$2 left=$((budget - SECONDS)) began=$SECONDS status verdict note
    shift 2
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$limit" -lt 5 ]; then row "$name" "not run" "-" "the $budget seconds were used up"; return 1; fi
    echo "\$ $*" >"$folder/$name.log"
    timeout -k 5 "$limit" "$@" >>"$folder/$name.log" 2>&1 </dev/null
    status=$?
    case $status in
        0) verdict=pass ;;
        124 | 137) verdict="**time limit**" ;;
        *) verdict="**fail** ($status)" ;;
    esac
    [ $status -eq 0 ] || failed=$((failed + 1))
    note=$(grep -E '^(All tests passed|test cases:|median |={9} ERROR SUMMARY|={9} RACECHECK SUMMARY)' "$folder/$name.log" | tail -n 1)
    row "$name" "$verdict" "$((SECONDS - began)) s" "$note"
    return $status
}
skip() { row "$1" skipped - "$2"; }

# --- the machine
say "# $($rehearse && echo "Rehearsal on a CPU" || echo "GPU check"), $(date -u +%Y-%m-%dT%H:%MZ), $(git describe --always --dirty 2>/dev/null || echo "no git")"
say
$rehearse || nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm --format=csv | sed 's/^/    /' | tee -a "$folder/summary.md"
say "    $("$nvcc" --version 2>/dev/null | grep release || echo "no nvcc"); $(${CXX:-g++} --version | head -n 1); $(nproc) cores; $(uname -sr)"
say
say "| step | result | time | |"
say "|---|---|---|---|"

# --- build
cublas=()
if ! printf '#include <cublasLt.h>\n' | ${CXX:-g++} -E -x c++ -I "$(dirname "$(realpath "${nvcc:-/}")")/../include" - >/dev/null 2>&1 && command -v python3 >/dev/null; then
    # A toolkit without cuBLASLt: PyTorch's copy will do.
    root=$(python3 -c 'import importlib.util, pathlib
for folder in importlib.util.find_spec("nvidia").submodule_search_locations:
    for header in pathlib.Path(folder).glob("*/include/cublasLt.h"): print(header.parent.parent)' 2>/dev/null | head -n 1)
    [ -n "$root" ] && cublas=("CUBLAS_ROOT=$root")
fi
if [ -n "$nvcc" ]; then step build_cuda 240 make -j"$(nproc)" DEVICE=cuda NVCC="$nvcc" "${cublas[@]}" build/cuda/train_gpt2 tools tests
else skip build_cuda "no nvcc"; fi
if $rehearse; then step build_cpu 400 make -j"$(nproc)" DEVICE=cpu build/cpu/train_gpt2 tools tests; fi

# --- correctness
whole_models="loss and gradients of a whole model equal fp64,bf16 follows fp64*"  # every kernel in both types, tiny
if $rehearse; then
    step tests_kernels 60 "$bin/tests" "[gelu]"
    step tests_models 60 "$bin/tests" "$whole_models"
else
    step tests_kernels 70 "$bin/tests" "[embedding],[layernorm],[gelu],[bias_gradient],[attention],[classifier],[grad_norm],[adamw]" --durations yes
    step tests_matmul 30 "$bin/tests" "[matmul]" --durations yes
    step tests_models 30 "$bin/tests" "[model],[accumulation],[memory_plan],[interrupt]" --durations yes
fi

# --- training, and the same in PyTorch, on the same random tokens
shard=$folder/random.bin steps=50 peer_steps=30 length=1024 init=d12
$rehearse && steps=8 peer_steps=5 length=32 init=custom:l=2,h=2,c=64,t=64
cat >"$folder/random_shard.cpp" <<'CPP'
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
int main(int, char** argv) {  // PATH TOKENS: ids below 50257 in llm.c's format
    std::int32_t header[256] = {20240520, 1, std::atoi(argv[2])};
    std::vector<std::uint16_t> ids(header[2]);
    std::uint64_t state = 1;
    for (auto& id : ids) id = std::uint16_t(((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) % 50257);
    std::FILE* file = std::fopen(argv[1], "wb");
    return !file || std::fwrite(header, 1, sizeof header, file) != sizeof header || std::fwrite(ids.data(), 2, ids.size(), file) != ids.size() || std::fclose(file);
}
CPP
step data 20 bash -c '"${CXX:-g++}" -O1 -o "$1/random_shard" "$1/random_shard.cpp" && "$1/random_shard" "$2" "$3"' - "$folder" "$shard" $((64 * length * (steps + 1) + 1))
batch=64
$rehearse && batch=4
train=("$bin/train_gpt2" -i "$shard" -e $init -t $length -x $steps -v 0 --dtype bf16)
while [ $batch -gt 1 ] && ! timeout 20 "${train[@]}" -b $batch --dry-run >"$folder/dry_run.log" 2>&1; do batch=$((batch / 2)); done
step training 60 "${train[@]}" -b $batch
# The first steps choose algorithms and fill caches.
median=$(sed -n 's/^step .* loss .* | \([0-9.]*\) ms | .*/\1/p' "$folder/training.log" 2>/dev/null | tail -n +4 | sort -n |
    awk '{ ms[NR] = $1 } END { if (NR) print ms[int((NR + 1) / 2)] }')

# --- memory errors and races
sanitizer=$(command -v compute-sanitizer || ls "$(dirname "${nvcc:-/}")/compute-sanitizer" 2>/dev/null)
for tool in memcheck racecheck; do
    if $rehearse || [ -z "$sanitizer" ]; then skip $tool "$($rehearse && echo "needs a GPU" || echo "no compute-sanitizer")"
    else step $tool 45 "$sanitizer" --tool $tool --error-exitcode 1 "$bin/tests" "$whole_models"; fi
done

# --- speed of the parts
if $rehearse; then
    step bench_kernels 60 "$bin/bench_kernels" --rows 64 --seq-len 32 --channels 64 --heads 2 --vocabulary 97 --padded-vocabulary 128 --classifier-rows 16 \
        --parameters 65536 --budget 0.01
    step bench_attention 20 "$bin/bench_attention" 2 2 32 64
    step bench_matmul 60 "$bin/bench_matmul" step rows=32 0
else
    step bench_kernels 45 "$bin/bench_kernels" --rows 65536 --seq-len 1024 --classifier-rows 8192 --budget 0.1
    step bench_attention 20 "$bin/bench_attention" 64 12 64 1024
    step bench_matmul 45 "$bin/bench_matmul" step rows=8192 0.3
fi

peer=(python3 dev/peer_pytorch.py -e $init -i "$shard" -b $batch -t $length -x $peer_steps --dtype bf16)
$rehearse && peer+=(--no-compile --device cpu)
if python3 -c 'import torch, numpy' 2>/dev/null; then step peer_pytorch 150 "${peer[@]}"; else skip peer_pytorch "no python3 with torch and numpy"; fi
$rehearse || step tests_runs 75 "$bin/tests" "[run]" --durations yes  # last: every case starts programs of its own
peer_median=$(sed -n 's/^median \([0-9.]*\) ms.*/\1/p' "$folder/peer_pytorch.log" 2>/dev/null)

# --- what it comes to
say
say "    $init, $batch x $length tokens, bf16, one step: train_gpt2 ${median:-n/a} ms, PyTorch ${peer_median:-n/a} ms, ratio $(
    awk -v ours="${median:-0}" -v theirs="${peer_median:-0}" 'BEGIN { if (ours > 0 && theirs > 0) printf "%.2f", ours / theirs; else printf "n/a" }')"
for name in build_cuda build_cpu tests_kernels tests_matmul tests_models tests_runs training memcheck racecheck bench_kernels bench_attention bench_matmul peer_pytorch; do
    log=$folder/$name.log
    [ -f "$log" ] || continue
    {
        echo
        echo "## $name"
        echo
        case $name in
            build_*) grep -iE 'warning|error' "$log" | grep -v -- ' -Wall ' | head -n 10; tail -n 2 "$log" | cut -c 1-150 ;;
            tests_* | memcheck | racecheck) head -n 1 "$log"; grep -E 'FAILED:|^[0-9.]+ s: |^=====' "$log" | sort -rn | uniq | head -n 20; tail -n 5 "$log" ;;
            training) head -n 40 "$log" | grep -vE '^step '; grep -E '^step ' "$log" | tail -n 3 ;;
            peer_pytorch) head -n 1 "$log"; tail -n 6 "$log" ;;
            *) cat "$log" ;;
        esac | sed 's/^/    /'
    } >>"$folder/summary.md"
done
rm -f "$shard" "$folder"/random_shard*
echo "$folder/summary.md: $failed steps failed, $SECONDS s"
[ $failed -eq 0 ]
