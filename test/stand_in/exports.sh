#!/usr/bin/env bash
# exports.sh - checks that the stand-ins define exactly the functions that the program and its tests import from
# NVIDIA's libraries, and all functions that the host code of the CUDA build imports
set -uo pipefail
cd "$(dirname "$0")/../.."
pattern='^(cuda|cublas|nccl|cudnn|nvrtc)[A-Z]'
names() { grep -oE '[A-Za-z_][A-Za-z0-9_]*(@[A-Za-z0-9_.]*)?$' | sed 's/@.*//' | grep -E "$pattern" | sort -u; }
imported=$(nm -D --undefined-only build/stand-in/{train_gpt2,tests,misuse} | names)
defined=$(nm -D --defined-only build/stand-in/*.so | names)
objects=$(tr ' ' '\n' <build/cuda/library | grep '^build/host/.*\.o$')
real=$(nm --undefined-only build/host/train_gpt2.cu.o $objects | names)
left_over=$(comm -23 <(echo "$defined") <(printf '%s\n' "$imported" "$real" | sort -u))
missing=$(comm -13 <(echo "$defined") <(echo "$real"))
# NVML's functions, which the program looks up by name at run time.
nvml() { grep -oE 'nvml[A-Z][A-Za-z0-9_]*' | sort -u; }
unknown=$(comm -23 <(nm -D --defined-only build/stand-in/libnvidia-ml.so.1 | nvml) \
    <(grep -oE '"nvml[A-Za-z0-9_]+"' llmc/run/log/gpu_monitor.cpp | nvml))
left_over="$left_over$unknown"
echo "$(wc -l <<<"$defined") functions defined, $(wc -l <<<"$real") called by the host code of the CUDA build"
[ -z "$left_over" ] || echo "defined but never called:" $left_over
[ -z "$missing" ] || echo "called but not defined:" $missing
# The stand-in build must be linked from the current objects.
for object in $objects; do
    [ ! build/stand-in/train_gpt2 -ot "$object" ] || { echo "$object is newer than what is linked from it"; exit 1; }
done
[ -z "$left_over$missing" ] && [ "$(wc -l <<<"$real")" -gt 50 ]
