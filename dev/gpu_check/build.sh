# shellcheck shell=bash disable=SC2034,SC2154
# build.sh - for gpu_check.sh: uses the programs in build/cuda, or in the archive that pack.sh made on another machine,
# if they were built from these sources and start here. With BUILD=1 it builds them otherwise. Sourced, not run
#
# Variables of the script that sources it: those of steps.sh; `nvcc`, `toolkit`, `packages` and `no_nvcc`; `rehearse`:
# use the CPU build; and its function `lacks`.
programs_start() { build/cuda/train_gpt2 --version && build/cuda/tests --help; } >/dev/null 2>&1

# Programs built on another machine do not have this machine's paths of CUDA's libraries.
find_libraries() {
    local folder
    if ! programs_start; then
        for folder in "$toolkit/lib64" "${packages[@]/%//lib}"; do
            if [ -d "$folder" ]; then export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder; fi
        done
        programs_start || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$PWD/build/deps/lib  # libgomp
        programs_start || return
    fi
    # NVRTC opens libnvrtc-builtins by name: the loader searches the system's folders, but not where it found NVRTC.
    folder=$(ldd build/cuda/train_gpt2 2>/dev/null | sed -nE 's|.*libnvrtc\.so\S* => (/.*)/\S+ \(.*|\1|p')
    case $folder in
        "" | /lib/*-linux-gnu | /usr/lib/*-linux-gnu | /lib64 | /usr/lib64) ;;
        *) export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder ;;
    esac
}

# why_not SOURCES: why the programs cannot be used, in one line
why_not() {
    local there
    there=$(cat build/cuda/gpu_check.sources 2>/dev/null) || { echo "build/cuda has no packed programs"; return; }
    [ "$there" = "$1" ] || { echo "the programs in build/cuda were built from other sources ($there, not $1)"; return; }
    echo "the programs in build/cuda do not start: $({ ldd build/cuda/train_gpt2 build/cuda/tests 2>&1 |
        grep 'not found' || build/cuda/train_gpt2 --version 2>&1 || build/cuda/tests --help 2>&1; } | head -n 20 |
        awk '{ $1 = $1 } !seen[$0]++ { printf "%s%s", (NR > 1 ? "; " : ""), $0 }')"
}

build() {
    limits+=([unpack]=60 [build]=7200 [build_cpu]=7200)
    local stamp=build/cuda/gpu_check.sources packed=build/packed/gpu_check.tar.xz sources why
    sources=$(dev/gpu_check/sources.sh)
    is_current() { [ "$(cat $stamp 2>/dev/null)" = "$sources" ]; }
    # Not with tar, which needs the program xz.
    if ! is_current && [ -e $packed ]; then step unpack "" python3 -m tarfile -e $packed .; fi
    # shellcheck source=/dev/null
    if [ -e build/deps/env.sh ]; then . build/deps/env.sh; fi
    if ! { is_current && find_libraries; }; then
        why=$(why_not "$sources")
        if [ "${BUILD:-}" = 1 ]; then
            say "    $why"
            # For the GPU of this machine; one translation unit per folder, as for the tests on CPUs.
            step build "$no_nvcc" make -k -j"$(nproc)" DEVICE=cuda NVCC="$nvcc" UNITE="kernels llmc test" \
                build/cuda/train_gpt2 tools tests
            if [ -z "$no_nvcc" ] && [ "$last_status" -eq 0 ]; then echo "$sources" >$stamp; fi
        elif $rehearse; then
            say "    $why; the rehearsal needs none"
        else
            say "error: $why; expected programs of these sources that start here: pack them with" \
                "dev/gpu_check/pack.sh on another machine, or set BUILD=1 to build them here, which takes minutes"
            exit 2
        fi
    fi
    if $rehearse; then
        step build_cpu "$(lacks "$(command -v make)" make)" make -j"$(nproc)" DEVICE=cpu UNITE="kernels llmc test" \
            build/cpu/train_gpt2 tools tests
    fi
}
