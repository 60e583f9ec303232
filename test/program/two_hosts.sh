#!/usr/bin/env bash
# two_hosts.sh - trains with one rank on each of two hosts, which are network namespaces of this machine
# (test/support/two_hosts.sh), and compares losses and weights with two ranks on one host, bit for bit; then with two
# ranks on each, whose hosts compress what they send
#
#   test/program/two_hosts.sh [build/cpu/train_gpt2]
#
# The launcher is scripts/run_two_nodes.sh, as a user starts it; instead of ssh it enters the other namespace. Exit code
# 77: namespaces are not permitted here.
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
# shellcheck source=test/support/two_hosts.sh
. test/support/two_hosts.sh
set -e
program=$(realpath "${1:-train_gpt2}")
make_hosts

# A language that a small model learns quickly: counting, with an end of text now and then.
for ((i = 0; i < 600; ++i)); do echo "$i $((i * 7 % 100)) $((i * 13 % 100))"; done >"$work/text"
# passes NAME COMMAND...: its output is $work/NAME.txt
passes() {
    "${@:2}" >"$work/$1.txt" 2>&1 || wrong "$1: exit code $?: $(cat "$work/$1.txt")"
}
passes tokenize "${program%/*}/tokenize" -o "$work" --name count --document-start '^[0-9]*0 ' "$work/text"
same=(-i "$work/count_train_*.bin" -e "custom:l=2,h=2,c=32,t=32" -t 32 -v 0 --threads 1
    --lr 1e-2 --dtype fp32 -u 0 -c 0.1)
flags=("${same[@]}" -b 2 -d 256)
export PROGRAM=$program
losses() { grep -o '"event":"step","step":[0-9]*,"epoch":[0-9]*,"loss":[^,]*' "$work/$1/log.jsonl"; }
# compare FLAGS...: the same run on two hosts and on one
compare() {
    rm -rf "$work/one" "$work/two"
    passes two on_first_host timeout -k 5 120 scripts/run_two_nodes.sh "${flags[@]}" -x 20 "$@" -o "$work/two"
    RANKS=2 passes one timeout -k 5 120 scripts/run_one_node.sh "${flags[@]}" -x 20 "$@" -o "$work/one"
    [ "$(losses one | wc -l)" = 20 ] || wrong "the run on one host has not logged 20 steps"
    diff <(losses one) <(losses two) || wrong "losses differ"
    cmp "$work/one/step_00000020/model.safetensors" "$work/two/step_00000020/model.safetensors" || exit 1
}
compare --optimizer onebit-adam --onebit-freeze-step 5
compare -z 1

# The ranks were on two hosts: a refusal names both.
ends 2 'error: rank 1 on hostb has --seed 2, rank 0 on hosta has 1; start all ranks with the same flags' \
    on_first_host env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 60 \
    mpirun --mca plm_rsh_agent "$work/agent" --bind-to none --mca btl tcp,self --mca btl_tcp_if_include veth0 \
    --mca oob_tcp_if_include veth0 --hostfile "$HOSTFILE" --map-by slot -np 2 \
    bash -c 'exec "$@" --seed $((OMPI_COMM_WORLD_RANK + 1))' seeds "$program" "${flags[@]}" -x 20

# Two ranks on each host: 1-bit Adam between the hosts, half of it again from a checkpoint; three ranks are refused.
onebit=("${same[@]}" -b 1 -z 0 --optimizer onebit-adam --onebit-freeze-step 4 --onebit-hierarchical -k constant)
# on_four NAME FLAGS...
on_four() {
    on_first_host env HOSTFILE="$work/four" timeout -k 5 120 scripts/run_two_nodes.sh "${onebit[@]}" "${@:2}" \
        -o "$work/$1"
}
printf '10.98.0.1 slots=2\n10.98.0.2 slots=2\n' >"$work/four"
passes nodes on_four nodes -d 256 -x 20
passes parts on_four parts -d 256 -x 10
passes parts on_four parts -d 256 -x 20 -y auto
[ "$(grep -c '"event":"step".*"stage":"compressed"' "$work/nodes/log.jsonl")" = 16 ] ||
    wrong "the hosts have not compressed 16 steps: $(cat "$work/nodes.txt")"
cmp "$work/nodes/step_00000020/model.safetensors" "$work/parts/step_00000020/model.safetensors" || exit 1
RANKS=3 ends 2 'error: the number of ranks of a machine is 1 on one and 2 on another; expected the same on all;' \
    on_four three -d 96 -x 20
[ $failed = 0 ] || exit 1

# A rank that is killed ends both: nothing is left on either host.
on_first_host timeout -k 5 60 scripts/run_two_nodes.sh "${flags[@]}" -x 100000000 -o "$work/killed" \
    >"$work/killed.txt" 2>&1 &
launcher=$!
for ((i = 0; i < 300; ++i)); do grep -qs '^step 3/' "$work/killed.txt" && break; sleep 0.1; done
ranks_on() {
    for process in $(ip netns pids "$1"); do
        [ "/proc/$process/exe" -ef "$program" ] && echo "$process"
    done
    true
}
victim=$(ranks_on "$host_b" | head -n 1)
[ -n "$victim" ] || wrong "no rank on the second host: $(cat "$work/killed.txt")"
kill -KILL "$victim"
if wait "$launcher"; then wrong "a run whose rank was killed ended with exit code 0"; fi
began=$SECONDS
while [ -n "$(ranks_on "$host_a")$(ranks_on "$host_b")" ] && [ $((SECONDS - began)) -lt 10 ]; do sleep 0.1; done
[ -z "$(ranks_on "$host_a")$(ranks_on "$host_b")" ] || wrong "ranks still run 10 s after one was killed"
echo "two hosts and one host: 20 losses and the weights are bit-identical; compressed runs resume bit-identical; an" \
    "error names both hosts; a killed rank ends the run on both"
