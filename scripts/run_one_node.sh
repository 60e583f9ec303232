#!/usr/bin/env bash
# run_one_node.sh - trains with several ranks on this machine: one GPU per rank, or a share of the cores
#
#   scripts/run_one_node.sh -i 'data/mine_train_*.bin' -e d12 -o runs/mine
#   RANKS=2 scripts/run_one_node.sh ...
#
# Accepts all flags of train_gpt2. RANKS: number of ranks (default: one per GPU, of those in CUDA_VISIBLE_DEVICES if it
# is set; 2 without a GPU).
#
# PROGRAM=build/cuda/train_gpt2 selects another build. Ctrl-C saves a checkpoint and ends the run. Returns the exit code
# of the run.
set -euo pipefail
# shellcheck source=scripts/launch.sh
. "$(dirname "$(realpath "$0")")/launch.sh"

gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)
if [ "$gpus" -gt 0 ] && [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
    gpus=${#visible[@]}
fi
ranks=${RANKS:-$((gpus > 0 ? gpus : 2))}
# Allows more ranks than cores in Open MPI 4 and 5. MPICH always allows it and has no flag --oversubscribe.
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# Ranks on one machine need no network; Open MPI 5 warns if it finds no route from a machine to itself.
export OMPI_MCA_btl_tcp_if_include=${OMPI_MCA_btl_tcp_if_include:-lo}
launch -np "$ranks" "$program" "$@"
