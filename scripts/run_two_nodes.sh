#!/usr/bin/env bash
# run_two_nodes.sh - trains over the machines of a hostfile, two or more, that this one reaches with ssh without a
# password
#
#   printf 'node1 slots=8\nnode2 slots=8\n' >hosts      # as many slots as GPUs
#   HOSTFILE=hosts INTERFACE=ens1f0 scripts/run_two_nodes.sh -i '/data/train_*.bin' -e d12 -b 16 -t 1024 -d 524288 \
#       -z 1 -o /shared/runs/mine
#
# Program and data must lie at the same paths everywhere (PROGRAM=... chooses the program); only rank 0, on the first
# machine, writes to -o. INTERFACE names the network that mpirun and NCCL use: without it each looks for one itself,
# which fails where machines have several that do not all reach the others (docker0, management). RANKS: fewer than
# there are slots. RSH: what is called instead of ssh. NCCL_*, OMP_* and CUDA_VISIBLE_DEVICES are passed on.
# Ctrl-C saves, then ends. Exit code: that of the run.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/launch.sh
. "$here/launch.sh"

grep -qs '^[^#]*[^#[:space:]]' "${HOSTFILE:-}" ||
    refuse "HOSTFILE is \"${HOSTFILE:-}\"; expected a readable file with a line \"name slots=N\" for each machine"
flags=(--hostfile "$HOSTFILE" --map-by slot)
if [ -n "${RANKS:-}" ]; then flags+=(-np "$RANKS"); fi
# ssh that asks for nothing and waits for nobody: a machine that does not answer, or wants a password, ends the start in
# seconds with ssh's own words.
if [ -n "${RSH:-}" ]; then
    flags+=(--mca plm_rsh_agent "$RSH")
else
    flags+=(--mca plm_rsh_args "-o BatchMode=yes -o ConnectTimeout=20")
fi
if [ -n "${INTERFACE:-}" ]; then
    flags+=(--mca oob_tcp_if_include "$INTERFACE" --mca btl_tcp_if_include "$INTERFACE")
    export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$INTERFACE}
fi
# Small messages and control over TCP and shared memory; gradients of GPUs go over NCCL, which finds InfiniBand itself.
flags+=(--mca pml ob1 --mca btl "tcp,vader,self")
while IFS='=' read -r name _; do
    case $name in NCCL_* | OMP_* | CUDA_VISIBLE_DEVICES) flags+=(-x "$name") ;; esac
done < <(env)
launch mpirun "${mpirun_flags[@]}" "${flags[@]}" "$program" "$@"
