#!/usr/bin/env bash
# kernel_table.sh FILE - a table of the kernels of a step: time, launches, share of the step and, of ncu, bytes moved
#
# FILE is what ncu writes with --csv --page raw --print-units base, or what kernel_times.cpp writes.
set -euo pipefail
[ -s "${1:-}" ] || { echo "error: \"${1:-}\" has nothing in it; expected what ncu or kernel_times wrote" >&2; exit 2; }

# Lines of nanoseconds, launches, bytes and name, separated by tabs; "step" is the time of a whole step, "idle" what of
# it nothing ran.
lines() {
    if grep -q '^"ID"' "$1"; then
        awk -F '","' '
            /^"ID"/ { for (i = 1; i <= NF; ++i) { gsub(/"/, "", $i); column[$i] = i } }
            /^"[0-9]/ {
                time = $column["gpu__time_duration.sum"]; bytes = $column["dram__bytes.sum"]
                gsub(/[",]/, "", time); gsub(/[",]/, "", bytes)
                name = $column["Kernel Name"]
                ns[name] += time; moved[name] += bytes; ++launches[name]
            }
            END { for (name in ns) printf "%.0f\t%d\t%.0f\t%s\n", ns[name], launches[name], moved[name], name }' "$1"
    else
        awk -F '\t' -v OFS='\t' '{ print $1, $2, 0, $3 }' "$1" | c++filt
    fi
}
lines "$1" | sed -E 's/kernels::|\(anonymous namespace\):://g; s/(\tvoid |\t)/\t/g' | sort -rn | awk -F '\t' '
    $4 == "step" || $4 == "idle" { whole[$4] = $1; next }
    {
        name = $4
        sub(/^void /, "", name)
        if (match(name, />\(/)) name = substr(name, 1, RSTART)  # without its parameters
        else sub(/\(.*/, "", name)
        if (!(name in ns)) order[++kernels] = name
        ns[name] += $1; launches[name] += $2; bytes[name] += $3; sum += $1; all += $2
    }
    END {
        if (!kernels) { print "no kernel" > "/dev/stderr"; exit 1 }
        print "| kernel | launches | us each | ms | share | GB/s |"
        print "|---|---|---|---|---|---|"
        for (i = 1; i <= kernels; ++i) {
            name = order[i]
            printf "| `%s` | %d | %.1f | %.3f | %.1f %% | %s |\n", substr(name, 1, 100), launches[name],
                ns[name] / launches[name] * 1e-3, ns[name] * 1e-6, 100 * ns[name] / sum,
                bytes[name] ? sprintf("%.0f", bytes[name] / ns[name]) : "-"
        }
        printf "| all | %d | %.1f | %.3f | 100 %% | - |\n", all, sum / all * 1e-3, sum * 1e-6
        if ("step" in whole)
            printf "\na whole step: %.3f ms, of which nothing ran for %.3f ms (%.1f %%)\n",
                whole["step"] * 1e-6, whole["idle"] * 1e-6, 100 * whole["idle"] / whole["step"]
    }'
