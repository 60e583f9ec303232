#!/usr/bin/env bash
# no_gpu.sh TRAIN_GPT2 - a CUDA build on a machine without a GPU: one error line with a fix, exit code 2, nothing
# written; --version still prints whether cuDNN is available
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
if nvidia-smi -L 2>/dev/null | grep -q GPU; then echo "skipped: this machine has a GPU"; exit 77; fi
for said in "error: no GPU can be used: " "make DEVICE=cpu"; do
    one_line "$said" "$1" -i "$work/none_*.bin" -o "$work/out"
done
[ ! -e "$work/out" ] || fail "a refused run wrote into its folder"
[[ $("$1" --version) =~ cuDNN\ (no|[0-9]+\.[0-9]+\.[0-9]+) ]] || fail "--version: $("$1" --version)"
exit $failed
