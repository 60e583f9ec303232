# shellcheck shell=bash disable=SC2034,SC2154
# build.sh - for gpu_check.sh: uses the programs in build/cuda, or in the archive that pack.sh made on another machine,
# if they were built from these sources and start here; otherwise builds them. Sourced, not run
#
# Variables of the script that sources it: those of steps.sh; `nvcc`, `toolkit`, `python` and `no_nvcc`; `rehearse`: use
# the CPU build.
programs_start() { build/cuda/train_gpt2 --version && build/cuda/tests --help; } >/dev/null 2>&1

# Programs built on another machine do not have this machine's paths of CUDA's libraries.
find_libraries() {
    local folder
    programs_start && return
    for folder in "$toolkit/lib64" ${python:+"$python"/*/lib}; do
        if [ -d "$folder" ]; then export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder; fi
    done
    programs_start
}

# Not within the limits of a part: takes minutes if nothing is packed.
build() {
    local stamp=build/cuda/gpu_check.sources packed=build/packed/gpu_check.tar.xz sources limit=7200
    sources=$(dev/gpu_check/sources.sh)
    is_current() { [ "$(cat $stamp 2>/dev/null)" = "$sources" ]; }
    if ! is_current && [ -e $packed ]; then step unpack 60 "" tar -xf $packed; fi
    # shellcheck source=/dev/null
    if [ -e build/deps/env.sh ]; then . build/deps/env.sh; fi
    if ! { is_current && find_libraries; }; then
        # One translation unit per folder, as for the tests on CPUs.
        step build $limit "$no_nvcc" make -k -j"$(nproc)" DEVICE=cuda NVCC="$nvcc" CUDA_ARCHS=all \
            UNITE="kernels llmc test" \
            build/cuda/train_gpt2 tools tests
        if [ -z "$no_nvcc" ] && [ "$last_status" -eq 0 ]; then echo "$sources" >$stamp; fi
    fi
    if $rehearse; then
        step build_cpu $limit "" make -j"$(nproc)" DEVICE=cpu UNITE="kernels llmc test" build/cpu/train_gpt2 tools tests
    fi
    deadline=$SECONDS limits=0
    say "    $("$bin/train_gpt2" --version 2>&1 | head -n 1)"
}
