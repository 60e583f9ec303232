#!/usr/bin/env bash
# make_flags.sh - for any folder of a library, no command of the build names a default search folder of compiler or
# linker: -isystem /usr/include hides the C library from C++ headers. All linker arguments of mpicxx reach the linker,
# the bundle's headers every host compiler, and libraries of python3's packages both. The GPUs that make compiles for:
# those that nvidia-smi lists, CUDA_ARCHS, or 80 and 90a; and PTX for the lowest
#
# Needs no CUDA: nvcc and nvidia-smi are scripts, and make runs nothing.
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
nvcc_of() {  # ROOT: an nvcc that reports its toolkit there
    printf '#!/bin/sh\ncase "$*" in\n*--list-gpu-code*) printf "sm_%%s\\n" 80 86 89 90 100 120 ;;\n%s' \
        "*) echo '#\$ _HERE_=$1/bin' >&2 ;;"$'\nesac\n' | tool nvcc
}
mkdir -p "$work/toolkit/bin"
system="(-isystem|-I|-L|-Wl,-rpath,) *(/usr/include|/usr/local/include|/usr/lib|/usr/lib64|/lib|/lib64)(/$(
    "${CXX:-g++}" -print-multiarch))?/?( |\$)"
# check TOOLKIT ROOTS...: the compile and link commands of everything
check() {
    nvcc_of "$1"
    local toolkit=$1 commands named
    shift
    commands=$(make -n -B DEVICE=cuda SUFFIX=-none NVCC="$work/bin/nvcc" "$@" all tests 2>/dev/null)
    if [ "$(grep -c -- " -c " <<<"$commands")" -lt 50 ]; then
        fail "toolkit in $toolkit, $*: the build has too few commands"; return
    fi
    named=$(grep -oE -- "$system" <<<"$commands" | sort | uniq -c)
    [ -z "$named" ] || fail "toolkit in $toolkit, $*: the build's commands name $named"
}
check /usr
for root in /usr /usr/; do
    for library in MPI_ROOT NCCL_ROOT CUBLAS_ROOT CUDNN_ROOT; do check "$work/toolkit" $library=$root; done
    check "$work/toolkit" MPI_ROOT=$root NCCL_ROOT=$root CUBLAS_ROOT=$root CUDNN_ROOT=$root NVRTC_ROOT=$root \
        CUDNN_FRONTEND="${root%/}/include"
done

# Open MPI 5 names its folder in a separate argument; without it -rpath takes the next one, which is -lmpi.
says="-L$work/mpi -Wl,-rpath -Wl,$work/mpi -lmpi"
printf '#!/bin/sh\n[ "$1" != --showme:link ] || echo "-pthread %s"\n' "$says" | tool mpicxx
# grep reads to the end, because make fails if its reader stops.
PATH=$work/bin:$PATH make -n -B DEVICE=cpu SUFFIX=-none build/cpu-none/train_gpt2 2>/dev/null |
    grep -- "^g++.* $says" >/dev/null || {
    fail "the linker does not get the flags of mpicxx: $says"
}

nvcc_of "$work/toolkit"
without=$(make -n -B DEVICE=cuda SUFFIX=-none NVCC="$work/bin/nvcc" BUNDLED="$work/headers" all tests 2>/dev/null |
    grep -E -- ' -c .*\.cpp' | grep -vE -- "-isystem $work/headers|/processor_check.cpp")
[ -z "$without" ] || fail "these commands do not search the bundle: $without"

# From python3's packages: NVRTC's second library, which is only loaded by name, and the headers of NVTX ranges.
packages=$work/python/nvidia
mkdir -p "$packages"/{cu13,cudnn}/{include,lib} "$packages/nvtx/include/nvtx3" "$work/headers"
touch "$packages"/{cu13/include/nvrtc.h,nvtx/include/nvtx3/nvToolsExt.h,cudnn/include/cudnn.h} \
    "$packages"/{cu13/lib/libnvrtc.so.13,cu13/lib/libnvrtc-builtins.so.13.0,cudnn/lib/libcudnn.so.9} \
    "$work/headers/cudnn_frontend.h"
from_packages=$(make -n -B DEVICE=cuda SUFFIX=-none NVCC="$work/bin/nvcc" PYTHON="$packages" BUNDLED="$work/headers" \
    build/cuda-none/train_gpt2 2>/dev/null)
grep -- " -isystem $packages/nvtx/include .* -c kernels/device/range_cuda.cpp" <<<"$from_packages" >/dev/null || {
    fail "the NVTX header is not searched in python3's packages"
}
builtins="-Wl,--push-state,--no-as-needed $packages/cu13/lib/libnvrtc-builtins.so.13.0 -Wl,--pop-state"
grep -- " -o build/cuda-none/train_gpt2 .* $builtins" <<<"$from_packages" >/dev/null || {
    fail "the program is linked without the library that NVRTC loads by name"
}

# ---- GPUs

# selects GPUS ARGUMENT EXPECTED: compute capabilities, one per line, or nvidia-smi's message; expected -gencode values
selects() {
    local found
    printf '#!/bin/sh\nprintf "%%b\\n" "%s"\n' "$1" | tool nvidia-smi
    found=$(PATH=$work/bin:$PATH make -n -B DEVICE=cuda SUFFIX=-none NVCC="$work/bin/nvcc" ${2:+"$2"} \
        build/cuda-none/kernels/gelu.cu.o 2>&1 | grep -E -- '-c kernels/gelu.cu|expected all' |
        grep -oE 'arch=[^ ]+|expected all.*' | sed 's/arch=compute_//' | tr '\n' ' ')
    found=${found% }
    [ "$found" = "$3" ] || fail "GPUs \"$1\", $2: found \"$found\"; expected \"$3\""
}
all="80,code=sm_80 90a,code=sm_90a 80,code=compute_80"
selects "8.9" "" "89,code=sm_89 89,code=compute_89"
selects "12.0\n12.0" "" "120,code=sm_120 120,code=compute_120"
selects "9.0" "" "90a,code=sm_90a 90,code=compute_90"
selects "9.0\n8.0\n9.0" "" "$all"
selects "7.5" "" "$all"                                         # kernels need 8.0
selects "13.1" "" "$all"                                        # newer than nvcc: uses the PTX
selects "Field \"compute_cap\" is not a valid field" "" "$all"  # an old driver
selects "8.9" CUDA_ARCHS=all "$all"
selects "8.9" "CUDA_ARCHS=120 80 90" "80,code=sm_80 90a,code=sm_90a 120,code=sm_120 80,code=compute_80"
selects "" CUDA_ARCHS=86,89 "86,code=sm_86 89,code=sm_89 86,code=compute_86"
for wrong in 75 sm_90 8.9; do
    selects "" CUDA_ARCHS=$wrong 'expected all, or numbers of 80 or more, such as "80 90a 120".  Stop.'
done
exit $failed
