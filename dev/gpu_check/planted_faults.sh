#!/usr/bin/env bash
# planted_faults.sh PROGRAM SANITIZER ARGUMENTS... - checks that each of compute-sanitizer's tools, with these
# arguments, finds its fault in planted_faults.cu
set -uo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
program=$1
shift
missed=0
for tool in memcheck racecheck synccheck initcheck; do
    output=$(timeout -k 5 30 "$1" --tool $tool --launch-timeout 60 --error-exitcode 9 "${@:2}" "$program" $tool 2>&1)
    status=$?
    echo "$output"
    if [ $status -eq 9 ] && grep -qE 'kernels::.*(writes_past|reads_what|waits_with)' <<<"$output"; then
        echo "found: $tool names the planted kernel"
    else
        echo "NOT FOUND: $tool ended with $status"
        missed=$((missed + 1))
    fi
done
[ $missed -eq 0 ]
