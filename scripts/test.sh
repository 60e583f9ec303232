#!/usr/bin/env bash
# test.sh - builds train_gpt2 and runs every test that needs no GPU; the last line says "N passed, N failed"
#
#   1. unit and whole-run tests on the CPU, those of matrix products and models also with older instructions; ranks as threads under ThreadSanitizer
#   2. the kernels and a whole tiny model at the GPU's geometry, on the host executor's fibers; the kernels again in its other orders of threads
#      and once more with checks of every memory access: for races between threads, with AddressSanitizer and UndefinedBehaviorSanitizer
#   3. the CUDA build for sm_80 and sm_90a, where nvcc is found
#   4. the quickstart, with 18 seconds of training
#
# Every test's time is printed, and the slowest ten of all at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
scripts/install_deps.sh || exit 1

jobs=$(nproc)
passed=0 failed=0 skipped=0
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# one NAME COMMAND...: a test that is one command; exit code 77 says that it cannot run here
one() {
    local name=$1 began=$SECONDS
    shift
    local status=0
    "$@" >"$logs/out" 2>&1 || status=$?
    if [ $status -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok: $name ($((SECONDS - began)) s)"
        echo "    $((SECONDS - began)) s: $name" >>"$logs/times"
    elif [ $status -eq 77 ]; then
        skipped=$((skipped + 1))
        echo "skipped: $name: $(tail -n 1 "$logs/out")"
    else
        failed=$((failed + 1))
        tail -n 60 "$logs/out"
        echo "FAILED: $name ($((SECONDS - began)) s)"
    fi
}

# cases NAME PROGRAM ARGS...: a Catch2 program, every test case counted. Threads sleep while they wait: on a machine with other work, spinning
# makes the thousands of small launches of these tests take ten times as long.
cases() {
    local name=$1 began=$SECONDS summary bad
    shift
    OMP_WAIT_POLICY=passive "$@" --durations yes >"$logs/out" 2>&1
    local status=$?
    grep -E '^[0-9.]+ s: ' "$logs/out" | sed 's/^/    /' | tee "$logs/durations"
    sed "s|\$| ($name)|" "$logs/durations" >>"$logs/times"
    summary=$(grep -E '^(All tests passed|test cases:)' "$logs/out" | tail -n 1)
    if [[ $summary =~ in\ ([0-9]+)\ test\ case ]]; then
        passed=$((passed + BASH_REMATCH[1]))
    elif [[ $summary =~ test\ cases:\ *([0-9]+) ]]; then
        local all=${BASH_REMATCH[1]}
        bad=$([[ $summary =~ ([0-9]+)\ failed ]] && echo "${BASH_REMATCH[1]}" || echo 0)
        passed=$((passed + all - bad)) failed=$((failed + bad))
    fi
    if [ $status -ne 0 ] || [ -z "$summary" ]; then
        grep -vE '^[0-9.]+ s: ' "$logs/out" | tail -n 80
        [[ $summary =~ failed ]] || failed=$((failed + 1))  # a crash, or no test of that name
    fi
    echo "$name: ${summary:-no summary, exit status $status} ($((SECONDS - began)) s)"
}

make -j"$jobs" DEVICE=cpu all tests >"$logs/build" 2>&1 ||
    { tail -n 40 "$logs/build"; echo "FAILED: build for the CPU"; echo "0 passed, 1 failed"; exit 1; }
echo "built for the CPU ($SECONDS s)"
cases "CPU" build/cpu/tests
cases "GPT-2 124M in bf16 and fp32" build/cpu/tests "[bf16_training_124M]"
# The library reads the variable once, so every cap is a process of its own.
for most in AVX2 AVX512_CORE AVX512_CORE_BF16; do
    cases "matrix products and models with instructions up to $most" env ONEDNN_MAX_CPU_ISA=$most build/cpu/tests "[matmul],[model]"
done

began=$SECONDS
make -j"$jobs" DEVICE=fibers build/fibers/tests >"$logs/build" 2>&1 || { tail -n 40 "$logs/build"; failed=$((failed + 1)); }
echo "built for fibers ($((SECONDS - began)) s)"
kernel_tags="[simt],[ptx],[math],[embedding],[layernorm],[gelu],[bias_gradient],[attention],[classifier],[grad_norm],[adamw],[rounding]"
kernel_tags+=",[sum_ranks],[gradient_copy],[sketch],[attention_methods]"
cases "GPU geometry on fibers" build/fibers/tests "$kernel_tags,[model]"
for order in reverse random mix; do
    cases "GPU geometry on fibers, threads in order $order" env SIMT_ORDER=$order build/fibers/tests "$kernel_tags"
done

# checked NAME DEVICE SANITIZE PROGRAM FILTER: tests under checks of every memory access
checked() {
    local name=$1 program=build/$2-${3//,/-}/$4 began=$SECONDS
    if make -j"$jobs" DEVICE="$2" SANITIZE="$3" "$program" >"$logs/build" 2>&1; then
        echo "built for $name ($((SECONDS - began)) s)"
        cases "$name" "$program" "$5"
    else
        tail -n 40 "$logs/build"
        failed=$((failed + 1))
    fi
}
# Left out: kernels that race on purpose, and those whose blocks must run at the same time.
checked "races between the threads of kernels" fibers thread tests "[race],${kernel_tags//]/]~[races]~[at_once]}"
checked "races between ranks that are threads" cpu thread rank_tests "[local],[ranks]~[mpi]"
# Left out: training through oneDNN, which is not instrumented, what only repeats accesses many times, and a count of memory mappings, of which
# AddressSanitizer has some of its own.
host_tags="[attention_choice],[background_task],[checkpoint],[communicator]~[mpi],[data_loader]"
host_tags+=",[model_config],[noise_scale],[options],[parameters],[placement],[safetensors],[sampler],[schedule]"
host_tags+=",[shard],[shuffle],[start_agreement],[tokenizer],[validation_batches]"
checked "AddressSanitizer, UndefinedBehaviorSanitizer" fibers address,undefined tests "${kernel_tags//]/]~[mappings]~[statistics]},$host_tags"

if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    one "CUDA build compiles and links for sm_80 and sm_90a" make -j"$jobs" DEVICE=cuda build/cuda/train_gpt2 build/cuda/tests
    one "a CUDA build without a GPU says so" test/program/no_gpu.sh build/cuda/train_gpt2
    one "no kernel spills registers" dev/kernel_resources.sh
else
    skipped=$((skipped + 1))
    echo "skipped: CUDA build (no nvcc)"
fi

one "ranks on two hosts" test/program/two_hosts.sh build/cpu/train_gpt2
one "quickstart" env QUICKSTART_MINUTES=0.3 DEVICE=cpu scripts/quickstart.sh
grep -E '^(validation loss|[0-9.]+ ms a step)' "$logs/out" | sed 's/^/    /'

echo "the slowest tests:"
sort -rn "$logs/times" | head -n 10
echo "took $SECONDS s"
if [ $skipped -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
[ $failed -eq 0 ]
