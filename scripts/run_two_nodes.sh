#!/usr/bin/env bash
# run_two_nodes.sh - trains on the machines in a hostfile, two or more, which must be reachable by password-less ssh
#
#   printf 'node1 slots=8\nnode2 slots=8\n' >hosts      # slots: number of GPUs
#   HOSTFILE=hosts INTERFACE=ens1f0 scripts/run_two_nodes.sh -i '/data/train_*.bin' -e d12 -z 1 -o /shared/runs/mine
#
# Program and data must be at the same paths on all machines (PROGRAM=... selects the program). If all ranks write
# checkpoints (with which flags: scripts/README.md), -o must be on a shared file system; otherwise only rank 0, on
# the first machine, writes to -o. INTERFACE: the network interface for mpirun and NCCL. Without it each selects one,
# which fails if some networks do not reach the other machines (docker0, management). RANKS: number of ranks, if fewer
# than the slots. RSH: the command to use instead of ssh. NCCL_*, OMP_* and CUDA_VISIBLE_DEVICES are passed on. Ctrl-C
# saves a checkpoint and ends the run. Returns the exit code of the run.
set -euo pipefail
# shellcheck source=scripts/launch.sh
. "$(dirname "$(realpath "$0")")/launch.sh"

grep -qs '^[^#]*[^#[:space:]]' "${HOSTFILE:-}" ||
    refuse "HOSTFILE is \"${HOSTFILE:-}\"; expected a readable file with a line \"name slots=N\" for each machine"
flags=(--hostfile "$HOSTFILE" --map-by slot)
if [ -n "${RANKS:-}" ]; then flags+=(-np "$RANKS"); fi
# ssh without prompts and with a timeout: if a machine does not answer or requires a password, the start fails within
# seconds with ssh's error message.
if [ -n "${RSH:-}" ]; then
    flags+=(--mca plm_rsh_agent "$RSH")
else
    flags+=(--mca plm_rsh_args "-o BatchMode=yes -o ConnectTimeout=20")
fi
if [ -n "${INTERFACE:-}" ]; then
    flags+=(--mca oob_tcp_if_include "$INTERFACE" --mca btl_tcp_if_include "$INTERFACE")
    export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$INTERFACE}
fi
# MPI sends small and control messages over TCP and shared memory; NCCL sends the gradients of GPUs and finds InfiniBand
# itself.
flags+=(--mca pml ob1 --mca btl "tcp,vader,self")
while IFS='=' read -r name _; do
    case $name in NCCL_* | OMP_* | CUDA_VISIBLE_DEVICES) flags+=(-x "$name") ;; esac
done < <(env)
launch "${flags[@]}" "$program" "$@"
