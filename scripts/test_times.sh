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
case ${1:-} in
    shares)
        awk -F '\t' '
            { if ($1 != run) { run = $1; count = cases = total = 0 } }
            $3 == "build" || $3 == "stage" {
                name[count] = ($3 == "build" ? "build of " : "") $4
                wall[count] = $5; used[count] = $6 + $7; total += used[count++]
            }
            $3 == "case" { slow[cases++] = sprintf("%7.1f s: %s", $5, $4) }
            $3 == "total" { elapsed = $5 }
            END {
                print "the slowest test cases:"
                for (i = 0; i < cases && i < 10; i++) print slow[i]
                print "  wall s  processor s  share"
                sort = "sort -k 2 -rn"
                for (i = 0; i < count; i++) {
                    share = 100 * used[i] / (total + 1e-9)
                    printf "%8.1f %12.1f %5.1f %%  %s\n", wall[i], used[i], share, name[i] | sort
                }
                close(sort)
                printf "total time: %d s, %d s of processor time\n", elapsed, total
            }' $times
        ;;
    compare)
        awk -F '\t' '
            { row[NR] = $0; selection[$1] = $2; if ($1 != last) { before[$1] = last; last = $1 } }
            END {
                for (run = before[last]; run != "" && selection[run] != selection[last]; run = before[run]);
                if (run == "") {
                    print "there is only one run of: scripts/test.sh " (selection[last] == "default" ? "" : \
                        selection[last])
                    exit
                }
                printf "processor seconds: of %s, of %s, change\n", run, last
                for (i = 1; i <= NR; i++) {
                    split(row[i], f, "\t")
                    if (f[3] != "build" && f[3] != "stage") continue
                    key = (f[3] == "build" ? "build of " : "") f[4]
                    if (f[1] == run) then[key] += f[6] + f[7]
                    else if (f[1] == last) now[key] += f[6] + f[7]
                    else continue
                    keys[key]
                }
                sort = "sort -rn | cut -f 2-"
                for (key in keys) {
                    change = now[key] - then[key]
                    sum_then += then[key]; sum_now += now[key]
                    printf "%.1f\t%8.1f %8.1f %+8.1f  %s\n", change < 0 ? -change : change, then[key], now[key], \
                        change, key | sort
                }
                close(sort)
                printf "%8.1f %8.1f %+8.1f  total\n", sum_then, sum_now, sum_now - sum_then
            }' $times
        ;;
    *) refuse "${1:-no argument}; expected shares or compare" ;;
esac
