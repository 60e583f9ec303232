#!/usr/bin/env bash
# test_times.sh - scripts/test_times.sh prints shares of the last run, and compares it with the run before that had the
# same argument
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/support/check.sh
. test/support/check.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/scripts" "$work/build"
cp scripts/test_times.sh scripts/help.sh "$work/scripts"
# prints STATUS EXPECTED ARGUMENTS...
prints() { ends "$1" "$2" "$work/scripts/test_times.sh" "${@:3}"; }
# took RUN ARGUMENT KIND NAME WALL USER SYSTEM
took() { (IFS=$'\t' && echo "$*") >>"$work/build/test_times.tsv"; }

prints 2 "build/test_times.tsv is missing; run scripts/test.sh first" shares
took 1 default build cpu 100 150 50
prints 2 "no argument; expected shares or compare"
took 1 default stage ranks 80 15 5
took 1 default case "a slow case" 30.5 "" ""
took 1 default total "" 200 "" ""
prints 0 "   100.0        200.0  90.9 %  build of cpu" shares
prints 0 "   30.5 s: a slow case" shares
prints 0 "total time: 200 s, 220 s of processor time" shares
prints 0 "there is only one run" compare
took 2 all build cpu 7 7 7
prints 0 "there is only one run" compare
took 3 default build cpu 100 10 0
took 3 default stage ranks 80 25 5
took 3 default total "" 190 "" ""
prints 0 "processor seconds: of 1, of 3, change" compare
prints 0 "   200.0     10.0   -190.0  build of cpu" compare
prints 0 "    20.0     30.0    +10.0  ranks" compare
prints 0 "   220.0     40.0   -180.0  total" compare
prints 0 "total time: 190 s, 40 s of processor time" shares
[ $failed = 0 ] && echo "test_times.sh prints shares and changes"
