#!/usr/bin/env bash
# kernel_resources.sh [BUILD] - registers and shared memory of every kernel of the CUDA build, and whether any kernel
# spills registers
#
# Reads ptxas's reports, which `make DEVICE=cuda` stores (.ptxas files in BUILD, default build/cuda), and prints a
# table: registers per thread on sm_80 and sm_90a, and static shared memory. Dynamic shared memory is documented next to
# each launcher. Needs no GPU.
#
# Exit codes: 0 no kernel spills, 1 one spills, 2 no reports found.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
most_words 1 "$@"
cd "$(dirname "$0")/../.."
shopt -s nullglob globstar
build=${1:-build/cuda}
reports=("$build"/kernels/**/*.ptxas)
[ ${#reports[@]} -gt 0 ] || refuse "$build/kernels has no .ptxas file; expected a CUDA build: make DEVICE=cuda"

# One line per kernel and architecture: name, architecture, registers, bytes of shared memory, of stack and of spills.
# Then one line per kernel.
awk -F"'" -v OFS='\t' '
    /Compiling entry function/ { name = $2; architecture = $4 }
    /bytes stack frame/ { split($0, n, /[^0-9]+/); stack = n[2]; spilt = n[3] + n[4] }
    /Used [0-9]+ registers/ {
        match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
        shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
        print name, architecture, registers, shared, stack, spilt
    }' "${reports[@]}" | c++filt -p |
    sed -E 's/kernels::\(anonymous namespace\)::|kernels:://g; s/\(anonymous namespace\):://g' | sort | awk -F'\t' '
    function registers_on(architecture) { return (name, architecture) in used ? used[name, architecture] : "-" }
    {
        name = $1; architecture = $2; registers = $3; shared = $4; stack = $5; spilt = $6
        if (!(name in seen)) { seen[name] = 1; order[++kernels] = name }
        used[name, architecture] = registers
        if (shared > memory[name]) memory[name] = shared
        if (stack > frame[name]) frame[name] = stack
        if (spilt > 0) { spills[name] += spilt; ++spilling }
    }
    END {
        print "| kernel | registers, sm_80 | sm_90a | static shared memory, bytes | stack, bytes | spilt, bytes |"
        print "|---|---|---|---|---|---|"
        for (i = 1; i <= kernels; ++i) {
            name = order[i]
            printf "| `%s` | %s | %s | %d | %d | %d |\n", name, registers_on("sm_80"), registers_on("sm_90a"),
                memory[name], frame[name], spills[name]
        }
        printf "\n%d kernels, %d of them spill\n", kernels, spilling
        exit spilling > 0
    }'
