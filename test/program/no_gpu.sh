#!/usr/bin/env bash
# no_gpu.sh TRAIN_GPT2 - a CUDA build on a machine without a GPU: one error line with a fix, exit code 2, nothing
# written; --version still prints whether cuDNN is available
set -uo pipefail
if nvidia-smi -L 2>/dev/null | grep -q GPU; then echo "skipped: this machine has a GPU"; exit 77; fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
message=$("$1" -i "$folder/none_*.bin" -o "$folder/out" 2>&1)
status=$?
echo "$message"
version=$("$1" --version) || exit 1
echo "$version"
[[ $version =~ cuDNN\ (no|[0-9]+\.[0-9]+\.[0-9]+) ]] || exit 1
[ $status -eq 2 ] && [ "$(echo "$message" | wc -l)" -eq 1 ] &&
    [[ $message == "error: no GPU can be used: "*"make DEVICE=cpu"* ]] && [ ! -e "$folder/out" ]
