# shellcheck shell=bash disable=SC2034,SC2154
# build.sh - for gpu_check.sh: uses the programs in build/cuda, or in the archive that pack.sh made on another machine,
# if they were built from these sources and start here. With BUILD=1 it builds them otherwise. Sourced, not run
programs_start() { build/cuda/train_gpt2 --version && build/cuda/tests --help; } >/dev/null 2>&1

# Programs built on another machine do not have this machine's paths of CUDA's libraries.
find_libraries() {
    local folder
    if ! programs_start; then
        for folder in "$toolkit/lib64" "${packages[@]/%//lib}" "$PWD/build/deps/lib"; do  # the last one has libgomp
            if [ -d "$folder" ]; then export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder; fi
        done
        programs_start || return
    fi
    # NVRTC opens libnvrtc-builtins by name: the loader searches the system's folders, but not where it found NVRTC.
    folder=$(ldd build/cuda/train_gpt2 2>/dev/null | sed -nE 's|.*libnvrtc\.so\S* => (/.*)/\S+ \(.*|\1|p')
    [[ $folder =~ ^((/usr)?/lib(64|/[^/]*-linux-gnu)?)?$ ]] ||
        export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
}

build() {
    limits+=([unpack]=60 [build]=7200)
    local stamp=build/cuda/gpu_check.sources packed=build/packed/gpu_check.tar.xz sources device=cuda
    sources=$(dev/gpu_check/sources.sh)
    is_current() { [ "$(cat $stamp 2>/dev/null)" = "$sources" ]; }
    if $rehearse; then device=cpu; else
        # Not with tar, which needs the program xz.
        if ! is_current && [ -e $packed ]; then step unpack "" python3 -m tarfile -e $packed .; fi
        # shellcheck source=/dev/null
        if [ -e build/deps/env.sh ]; then . build/deps/env.sh; fi
        if is_current && find_libraries; then return; fi
        [ "${BUILD:-}" = 1 ] || refuse "the programs in build/cuda are of the sources \"$(cat $stamp 2>/dev/null)\";" \
            "expected \"$sources\" and programs that start: pack them with dev/gpu_check/pack.sh on another machine," \
            "or set BUILD=1 to build them here, which takes minutes; missing:" \
            "$(ldd build/cuda/train_gpt2 build/cuda/tests 2>&1 | awk '/not found/ { print $1 }' | sort -u | xargs)"
    fi
    # For the GPU of this machine; one translation unit per folder, as for the tests on CPUs.
    step build "" make -j"$(nproc)" DEVICE=$device ${nvcc:+NVCC="$nvcc"} UNITE="kernels llmc test" \
        build/$device/train_gpt2 tools tests
    if [ "$last_status" -eq 0 ] && ! $rehearse; then echo "$sources" >$stamp; fi
}
