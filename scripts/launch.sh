# shellcheck shell=bash disable=SC2034,SC2317
# launch.sh - for the scripts that start ranks: what is started, on how many GPUs, what mpirun is given, and how it is
# stopped. Sourced, not run

# Ranks share out the cores themselves (scripts/README.md, "Devices and cores").
mpirun_flags=(--bind-to none)
# More ranks than cores, by Open MPI 4 and 5. MPICH, which asks for nothing, knows no flag --oversubscribe.
oversubscribe() { export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe; }

refuse() {
    echo "error: $*" >&2
    exit 2
}

# The program to start, ${PROGRAM:-train_gpt2}, as a path.
program=$(realpath -m "${PROGRAM:-$here/../train_gpt2}")
if ! [ -f "$program" ] || ! [ -x "$program" ]; then
    refuse "PROGRAM is $program; expected a program that can be run; build it with make"
fi
[[ ${RANKS:-1} =~ ^[1-9][0-9]*$ ]] || refuse "RANKS is $RANKS; expected a whole number from 1 on"

# mpirun refuses root, which is who works in a container, unless told twice.
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# The GPUs of this machine that programs may use.
count_gpus() {
    local gpus visible
    gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true)
    if [ "$gpus" -gt 0 ] && [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
        gpus=${#visible[@]}
    fi
    echo "$gpus"
}

# Hundredths of a second since the machine started: a clock that nobody sets.
clock() {
    local uptime
    read -r uptime _ </proc/uptime
    echo "${uptime/./}"
}

# Passes on what it reads, and goes on reading where its own reader is gone. No signal ends it before its input does.
pass_output_on() {
    trap '' INT TERM HUP USR1 USR2 PIPE
    cat 2>/dev/null || cat >/dev/null
}

# launch COMMAND...: runs mpirun and exits as it does.
#
# Signals. mpirun kills its processes two seconds after Ctrl-C or SIGTERM, too soon to save a large model. So these
# reach the ranks as SIGUSR1, which it passes on and waits; once they have saved the exit code is that of the signal.
# While mpirun starts the ranks it passes nothing on: SIGUSR1 is repeated until it has ended, and ranks take the first
# one. A second Ctrl-C, at least a second later, goes to mpirun. A signal that was ignored when the script started, as
# SIGHUP is below nohup, stays so: bash does not trap it.
#
# Output. mpirun aborts when the reader of its output goes (`run_one_node.sh ... | head`): it is given one that stays.
launch() {
    command -v mpirun >/dev/null ||
        refuse "mpirun is missing; expected Open MPI; scripts/install_deps.sh installs it, or source build/deps/env.sh"
    local process='' status repeats='' asked='' first_ctrl_c='' gave_up='' output='' errors=''
    ask_to_end() {
        [ -n "$process" ] && [ -z "$repeats" ] || return 0
        # What repeats must outlive the next signal to this group (`timeout` sends two): it inherits that they are
        # ignored.
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
            echo "error: a second Ctrl-C: ends without waiting for the ranks to save" >&2
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
        trap : PIPE # a message that nobody reads
    }
    take_signals # before there is anything that one of them could leave behind

    if [ -p /dev/stdout ]; then
        if [ /dev/stdout -ef /dev/stderr ]; then errors=yes; fi
        exec > >(pass_output_on)
        output=$!
        [ -z "$errors" ] || exec 2>&1
    fi
    set -m # a process group of its own: Ctrl-C reaches this shell only
    # mpirun passes SIGUSR2 on once it can; until then it would end by it.
    (trap '' USR2 && exec "$@") </dev/null &
    process=$!
    set +m
    [ -z "$asked" ] || ask_to_end
    while :; do
        status=0
        wait "$process" || status=$?
        kill -0 "$process" 2>/dev/null || break # else a signal ended the waiting only
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
