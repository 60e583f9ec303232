# two_hosts.sh - to source after check.sh: two hosts joined by a link. The hosts are network namespaces of this machine
# with their own addresses and names (hosta, 10.98.0.1 and hostb, 10.98.0.2), each with half of its cores
#
#   make_hosts            call once; sets the namespaces $host_a and $host_b. Exit code 77 if hosts are not possible:
#                         they need root, network namespaces and host names
#   on_first_host COMMAND...   runs COMMAND; scripts/run_two_nodes.sh there starts a rank on each host
# shellcheck shell=bash

skip() {
    echo "skipped: $1"
    exit 77
}

end_hosts() {
    local host process
    for host in "$host_a" "$host_b"; do
        for process in $(ip netns pids "$host" 2>/dev/null); do kill -KILL "$process" 2>/dev/null || true; done
        ip netns delete "$host" 2>/dev/null || true
    done
    rm -rf "$work"
}

make_hosts() {
    local tool host cores half
    [ "$(id -u)" = 0 ] || skip "network namespaces need root"
    for tool in ip mpirun unshare taskset; do command -v "$tool" >/dev/null || skip "no $tool"; done
    host_a=link_a_$$ host_b=link_b_$$
    trap end_hosts EXIT
    for host in "$host_a" "$host_b"; do
        ip netns add "$host" 2>/dev/null || skip "network namespaces are not permitted"
    done
    ip link add veth0 netns "$host_a" type veth peer name veth0 netns "$host_b" 2>/dev/null ||
        skip "no virtual network interfaces"
    ip -n "$host_a" address add 10.98.0.1/24 dev veth0
    ip -n "$host_b" address add 10.98.0.2/24 dev veth0
    for host in "$host_a" "$host_b"; do
        ip -n "$host" link set lo up
        ip -n "$host" link set veth0 up
    done
    # Half of this process's cores for each host; with one core, both share it.
    mapfile -t cores < <(taskset -cp $$ | sed 's/.*: //' | tr , '\n' |
        awk -F- '{ for (i = $1; i <= $NF; i++) print i }')
    half=$((${#cores[@]} > 1 ? ${#cores[@]} / 2 : 1))
    cores_a=$(IFS=, && echo "${cores[*]:0:half}") cores_b=$(IFS=, && echo "${cores[*]: -half}")
    # Replaces ssh for mpirun: AGENT HOST COMMAND...
    cat >"$work/agent" <<AGENT
#!/usr/bin/env bash
shift  # the only other host
exec taskset -c $cores_b ip netns exec $host_b unshare --uts bash -c 'hostname hostb && eval "\$1"' agent "\$*"
AGENT
    chmod +x "$work/agent"
    printf '10.98.0.1 slots=1\n10.98.0.2 slots=1\n' >"$work/hosts"
    export HOSTFILE=$work/hosts INTERFACE=veth0 RSH=$work/agent OMP_WAIT_POLICY=passive
    on_first_host true 2>/dev/null || skip "host names of their own are not permitted"
}

# shellcheck disable=SC2016
on_first_host() {
    taskset -c "$cores_a" ip netns exec "$host_a" unshare --uts bash -c 'hostname hosta && exec "$@"' hosta "$@"
}
