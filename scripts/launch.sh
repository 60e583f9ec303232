# shellcheck shell=bash disable=SC2034,SC2317
# launch.sh - for the scripts that start several ranks: what is started, what mpirun of Open MPI is given, and how it
# is stopped. Sourced, not run

# Ranks share out the cores themselves (scripts/README.md, "Devices and cores").
mpirun_flags=(--bind-to none)

refuse() {
    echo "error: $1" >&2
    exit 2
}

# The program to start, ${PROGRAM:-train_gpt2}, as a path.
program=$(realpath -m "${PROGRAM:-$here/../train_gpt2}")
if ! [ -f "$program" ] || ! [ -x "$program" ]; then
    refuse "PROGRAM is $program; expected a program that can be run; build it with make"
fi
command -v mpirun >/dev/null ||
    refuse "mpirun is missing; expected Open MPI; scripts/install_deps.sh installs it, or source build/deps/env.sh"
[[ ${RANKS:-1} =~ ^[1-9][0-9]*$ ]] || refuse "RANKS is $RANKS; expected a whole number from 1 on"

# mpirun refuses root, which is who works in a container, unless told twice.
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# launch COMMAND...: runs mpirun and exits as it does. mpirun kills its processes two seconds after Ctrl-C or SIGTERM,
# too soon to save a large model. So these reach the ranks as SIGUSR1, which it passes on and waits; once they have
# saved the exit code is that of the signal. The second one goes to mpirun.
launch() {
    local process status asked=0
    set -m # a process group of its own: Ctrl-C reaches this shell only
    "$@" </dev/null &
    process=$!
    interrupt() {
        if [ "$asked" = 0 ]; then kill -USR1 "$process"; else kill -TERM "$process"; fi
        asked=$1
    }
    trap 'interrupt 130' INT
    trap 'interrupt 143' TERM
    trap 'interrupt 138' USR1
    trap 'interrupt 129' HUP
    while :; do
        status=0
        wait "$process" || status=$?
        kill -0 "$process" 2>/dev/null || break # else a signal ended the waiting only
    done
    if [ "$asked" != 0 ] && [ "$status" = 138 ]; then exit "$asked"; fi
    exit "$status"
}
