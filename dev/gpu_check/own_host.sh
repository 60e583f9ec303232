#!/usr/bin/env bash
# own_host.sh COMMAND... - runs a rank that mpirun started under a host's name of its own, so that NCCL and the program
# take ranks of one machine for those of several; needs root
set -euo pipefail
# shellcheck disable=SC2016
exec unshare --uts bash -c 'echo "host$OMPI_COMM_WORLD_RANK" >/proc/sys/kernel/hostname && exec "$@"' - "$@"
