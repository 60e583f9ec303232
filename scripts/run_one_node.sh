#!/usr/bin/env bash
# run_one_node.sh - trains with several ranks on this machine: a GPU each, or a share of its cores
#
#   scripts/run_one_node.sh -i 'data/mine_train_*.bin' -e d12 -b 16 -t 1024 -d 524288 -o runs/mine
#   RANKS=2 scripts/run_one_node.sh ...
#
# Takes any flags of train_gpt2. RANKS: else one for each GPU, of CUDA_VISIBLE_DEVICES where that is set, or 2 without
# any.
#
# PROGRAM=build/cuda/train_gpt2 chooses another build. Ctrl-C saves, then ends. Exit code: that of the run.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/launch.sh
. "$here/launch.sh"

gpus=$(count_gpus)
ranks=${RANKS:-$((gpus > 0 ? gpus : 2))}
oversubscribe
# Ranks of one machine need no network; Open MPI 5 warns where it finds no path from a machine to itself.
export OMPI_MCA_btl_tcp_if_include=${OMPI_MCA_btl_tcp_if_include:-lo}
launch mpirun "${mpirun_flags[@]}" -np "$ranks" "$program" "$@"
