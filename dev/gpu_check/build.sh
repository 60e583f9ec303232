# shellcheck shell=bash disable=SC2034,SC2154
# build.sh - for gpu_check.sh: a build for CUDA, that of the other part or of another machine (pack.sh) where it is of
# these sources and starts. Sourced, not run
#
# Of the script that sources it: those that steps.sh takes; `nvcc`, `toolkit` and `python` say where those are,
# `no_nvcc` why not; `bin` holds the programs, and `rehearse` says that those are for the CPU.
start_here() { build/cuda/train_gpt2 --version && build/cuda/tests --help; } >/dev/null 2>&1

# Programs of another machine do not know where CUDA's libraries lie here.
find_libraries() {
    local folder
    start_here && return
    for folder in "$toolkit/lib64" ${python:+"$python"/*/lib}; do
        if [ -d "$folder" ]; then export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder; fi
    done
    start_here
}

# First what measures, so that it is there whatever becomes of the tests.
build() {
    local stamp=build/cuda/gpu_check.sources now built='' make=(make -k -j"$(nproc)" DEVICE=cuda NVCC="$nvcc")
    now=$(dev/gpu_check/sources.sh)
    if [ "$(cat $stamp 2>/dev/null)" = "$now" ] && find_libraries; then built="build/cuda is of these sources"; fi
    step build "$build_limit" "$(first "$no_nvcc" "$built")" "${make[@]}" build/cuda/train_gpt2 tools
    # Files as one, as the tests on CPUs have compiled them.
    step build_tests 50 "$(first "$no_nvcc" "$built")" "${make[@]}" UNITE="llmc test" build/cuda/train_gpt2 tools tests
    if $list; then return; fi
    if [ -z "$built$no_nvcc" ] && [ "$last_status" -eq 0 ]; then echo "$now" >$stamp; fi
    if $rehearse; then
        step build_cpu 0 "" make -j"$(nproc)" DEVICE=cpu UNITE="llmc test" build/cpu/train_gpt2 tools tests
        deadline=$SECONDS
    fi
    say "    $("$bin/train_gpt2" --version 2>&1 | head -n 1)"
}
