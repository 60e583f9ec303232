#!/usr/bin/env bash
# test_times.sh shares|compare - prints times of scripts/test.sh from build/test_times.tsv
#
#   shares    of the last run: wall and processor time of each build and part, and its share of all processor time
#   compare   of the last run and the run before with the same argument: processor time of each, largest change first
#
# A line of the file: run (time of its start, UTC), argument, kind, name, then seconds: wall, user, system. Kinds:
# build; stage, a part of the tests; case, one of the slowest test cases (wall time only); total (wall time only).
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
most_words 1 "$@"
cd "$(dirname "$0")/.."
times=build/test_times.tsv
[ -s $times ] || refuse "$times is missing; run scripts/test.sh first"
[[ ${1:-} =~ ^(shares|compare)$ ]] || refuse "${1:-no argument}; expected shares or compare"
python3 - "$1" $times <<'PYTHON'
import sys
from collections import defaultdict
what, times = sys.argv[1:]
runs, selections, slow, used = [], {}, defaultdict(list), defaultdict(lambda: defaultdict(float))
wall, elapsed = defaultdict(dict), {}
for line in open(times):
    run, selection, kind, name, *seconds = line.rstrip("\n").split("\t")
    if run not in selections: runs.append(run)
    selections[run] = selection
    if kind == "case": slow[run].append(f"{float(seconds[0]):7.1f} s: {name}")
    if kind == "total": elapsed[run] = float(seconds[0])
    if kind not in ("build", "stage"): continue
    name = "build of " * (kind == "build") + name
    wall[run][name] = float(seconds[0])
    used[run][name] += float(seconds[1]) + float(seconds[2])
last = runs[-1]
now, total = used[last], sum(used[last].values())
before = [run for run in runs[:-1] if selections[run] == selections[last]]
if what == "shares":
    print("the slowest test cases:", *slow[last][:10], "  wall s  processor s  share", sep="\n")
    for name in sorted(now, key=now.get, reverse=True):
        print(f"{wall[last][name]:8.1f} {now[name]:12.1f} {100 * now[name] / (total or 1):5.1f} %  {name}")
    print(f"total time: {elapsed.get(last, 0):.0f} s, {total:.0f} s of processor time")
elif not before:
    print("there is only one run of: scripts/test.sh", selections[last].replace("default", ""))
else:
    then = used[before[-1]]
    print(f"processor seconds: of {before[-1]}, of {last}, change")
    for name in sorted({**then, **now}, key=lambda name: -abs(now[name] - then[name])):
        print(f"{then[name]:8.1f} {now[name]:8.1f} {now[name] - then[name]:+8.1f}  {name}")
    print(f"{sum(then.values()):8.1f} {total:8.1f} {total - sum(then.values()):+8.1f}  total")
PYTHON
