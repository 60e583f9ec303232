#!/usr/bin/env bash
# cases.sh FILTER [COMMAND...] TESTS - runs the tests that the filter selects; fails before if one of its alternatives,
# separated by commas, selects none
set -euo pipefail
IFS=, read -ra alternatives <<<"$1"
for one in "${alternatives[@]}"; do
    listed=$("${@: -1}" --list-tests "$one" || true)  # exits with their number
    [[ $listed =~ (^|$'\n')[1-9][0-9]*" matching test case" ]] ||
        { echo "error: no test case matches \"$one\"; expected one or more in ${*: -1}" >&2; exit 1; }
done
export OMP_WAIT_POLICY=passive  # the programs share the cores: waiting threads that spin would delay the others
exec "${@:2}" "$1" --durations yes
