#!/usr/bin/env bash
# cuda_archs.sh - the GPUs that make compiles for: those that nvidia-smi lists, CUDA_ARCHS, or 80 and 90a; and PTX for
# the lowest
#
# Needs no CUDA: nvcc and nvidia-smi are scripts, and make runs nothing.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=test/support/check.sh
. test/support/check.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/toolkit/bin"
cat >"$folder/nvcc" <<EOF
#!/bin/sh
case "\$*" in
    *--list-gpu-code*) printf 'sm_%s\n' 80 86 89 90 100 120 ;;
    *) echo "#\\$ _HERE_=$folder/toolkit/bin" >&2 ;;
esac
EOF
chmod +x "$folder/nvcc"
# check GPUS ARGUMENT EXPECTED: compute capabilities, one per line, or nvidia-smi's message; expected -gencode values
check() {
    local found
    printf '#!/bin/sh\nprintf "%%b\\n" "%s"\n' "$1" >"$folder/nvidia-smi"
    chmod +x "$folder/nvidia-smi"
    found=$(PATH=$folder:$PATH make -n -B DEVICE=cuda SUFFIX=-none NVCC="$folder/nvcc" ${2:+"$2"} \
        build/cuda-none/kernels/gelu.cu.o 2>&1 | grep -E -- '-c kernels/gelu.cu|expected all' |
        grep -oE 'arch=[^ ]+|expected all.*' | sed 's/arch=compute_//' | tr '\n' ' ')
    found=${found% }
    [ "$found" = "$3" ] || fail "GPUs \"$1\", $2: found \"$found\"; expected \"$3\""
}
all="80,code=sm_80 90a,code=sm_90a 80,code=compute_80"
check "8.9" "" "89,code=sm_89 89,code=compute_89"
check "12.0\n12.0" "" "120,code=sm_120 120,code=compute_120"
check "9.0" "" "90a,code=sm_90a 90,code=compute_90"
check "9.0\n8.0\n9.0" "" "$all"
check "7.5" "" "$all"                                         # kernels need 8.0
check "13.1" "" "$all"                                        # newer than nvcc: uses the PTX
check "Field \"compute_cap\" is not a valid field" "" "$all"  # an old driver
check "8.9" CUDA_ARCHS=all "$all"
check "8.9" "CUDA_ARCHS=120 80 90" "80,code=sm_80 90a,code=sm_90a 120,code=sm_120 80,code=compute_80"
check "" CUDA_ARCHS=86,89 "86,code=sm_86 89,code=sm_89 86,code=compute_86"
for wrong in 75 sm_90 8.9; do
    check "" CUDA_ARCHS=$wrong 'expected all, or numbers of 80 or more, such as "80 90a 120".  Stop.'
done
exit $failed
