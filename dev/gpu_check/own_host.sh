#!/usr/bin/env bash
# own_host.sh COMMAND... - runs a rank of mpirun with its own host name, so that NCCL and the program treat the ranks of
# one machine as those of several; needs root
set -euo pipefail
# shellcheck disable=SC2016
exec unshare --uts bash -c 'echo "host$OMPI_COMM_WORLD_RANK" >/proc/sys/kernel/hostname && exec "$@"' - "$@"
