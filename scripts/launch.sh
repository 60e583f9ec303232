# shellcheck shell=bash disable=SC2317
# launch.sh - for the scripts that start ranks: help.sh, the program, mpirun, and signal handling. Sourced, not run
here=$(dirname "$(realpath "$0")")
# shellcheck source=scripts/help.sh
. "$here/help.sh"

# The program to start, ${PROGRAM:-train_gpt2}, as a path.
program=$(realpath -m "${PROGRAM:-$here/../train_gpt2}")
[ -f "$program" ] && [ -x "$program" ] ||
    refuse "PROGRAM is $program; expected an executable program; build it with make"
[[ ${RANKS:-1} =~ ^[1-9][0-9]*$ ]] || refuse "RANKS is $RANKS; expected a positive integer"

# mpirun refuses to run as root, the usual user in a container, unless both variables are set.
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# Hundredths of a second since boot: a monotonic clock.
clock() {
    local uptime
    read -r uptime _ </proc/uptime
    echo "${uptime/./}"
}

# Copies its input to its output, and continues to read after the reader of its output has exited. Ignores signals, so
# that it ends only with its input.
pass_output_on() {
    trap '' INT TERM HUP USR1 USR2 PIPE
    cat 2>/dev/null || cat >/dev/null
}

# launch FLAGS...: runs mpirun with these flags and exits with its exit code. The ranks divide the cores
# (scripts/README.md, "Devices and cores").
#
# Signals: mpirun kills its processes two seconds after Ctrl-C or SIGTERM, too soon to save a large model. Therefore
# launch sends SIGUSR1 instead, which mpirun passes on to the ranks while it waits. After the ranks have saved, the exit
# code is that of the original signal. mpirun passes on nothing while it starts the ranks, so SIGUSR1 is repeated until
# mpirun has exited; the ranks ignore repetitions. A second Ctrl-C, at least a second later, terminates mpirun. A signal
# that was ignored when the script started, such as SIGHUP under nohup, stays ignored: bash does not trap it.
#
# Output: mpirun aborts if the reader of its output exits (`run_one_node.sh ... | head`), so pass_output_on reads it.
launch() {
    command -v mpirun >/dev/null ||
        refuse "mpirun is missing; expected Open MPI; scripts/install_deps.sh installs it, or source build/deps/env.sh"
    local process='' status repeats='' asked='' first_ctrl_c='' gave_up='' output='' errors=''
    ask_to_end() {
        [ -n "$process" ] && [ -z "$repeats" ] || return 0
        # The repeating process must survive the next signal to this process group (`timeout` sends two), so it
        # inherits ignored signals.
        trap '' INT TERM HUP USR1 USR2
        while kill -USR1 "$process"; do sleep 1; done >/dev/null 2>&1 &
        repeats=$!
        take_signals
    }
    interrupt() {
        asked=${asked:-$1}
        ask_to_end
    }
    ctrl_c() {
        asked=${asked:-130} # before another trap can run
        if [ -z "$first_ctrl_c" ]; then
            first_ctrl_c=$(clock)
        elif [ -z "$gave_up" ] && [ $(($(clock) - first_ctrl_c)) -ge 100 ]; then
            gave_up=yes
            echo "error: a second Ctrl-C: ending without waiting for the ranks to save" >&2
            [ -z "$process" ] || kill -TERM "$process" || true
        fi
        interrupt 130
    }
    take_signals() {
        trap ctrl_c INT
        trap 'interrupt 143' TERM
        trap 'interrupt 138' USR1
        trap 'interrupt 129' HUP
        trap '[ -z "$process" ] || kill -USR2 "$process" || true' USR2
        trap : PIPE # the reader of a message has exited
    }
    take_signals # before starting anything that a signal could leave behind

    if [ -p /dev/stdout ]; then
        if [ /dev/stdout -ef /dev/stderr ]; then errors=yes; fi
        exec > >(pass_output_on)
        output=$!
        [ -z "$errors" ] || exec 2>&1
    fi
    set -m # its own process group: Ctrl-C reaches only this shell
    # mpirun passes on SIGUSR2 after its startup; before that, SIGUSR2 would end it.
    (trap '' USR2 && exec mpirun --bind-to none "$@") </dev/null &
    process=$!
    set +m
    [ -z "$asked" ] || ask_to_end
    while :; do
        status=0
        wait "$process" || status=$?
        kill -0 "$process" 2>/dev/null || break # otherwise a signal only interrupted the wait
    done
    [ -z "$repeats" ] || kill -KILL "$repeats" 2>/dev/null || true
    if [ -n "$gave_up" ]; then
        status=130
    elif [ -n "$asked" ] && [ "$status" = 138 ]; then
        status=$asked
    fi
    if [ -n "$output" ]; then
        exec >&-
        [ -z "$errors" ] || exec 2>&-
        wait "$output" || true
    fi
    exit "$status"
}
