#!/usr/bin/env bash
# changed.sh - scripts/test.sh changed selects the tests that a changed file can break, in a small tree with objects'
# .d files, a make that builds nothing and a test program that has only cases of [norm]
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/support/check.sh
. test/support/check.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,kernels,llmc/log,scripts,test/{kernels,operations,llmc,program}} "$work"/build/{cpu,fibers}
cp scripts/{test,help,test_times}.sh "$work/scripts"
cd "$work" || exit 1
# command FILE LINES: a script that the tree's test.sh calls
command() { printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; }
for stub in bin/make scripts/install_deps.sh scripts/get_gpt2_tokenizer.sh; do command $stub ""; done
command build/cpu/tests 'case "$*" in
    *"[norm][kernels]"*--list-tests) ;;
    *--list-tests) echo "0 matching test cases" ;;
    *) echo "All tests passed (3 assertions in 2 test cases)" ;;
esac'
cp build/cpu/tests build/fibers
command test/program/sweep.sh ": scripts/launch.sh"
# object_of FILE DEPENDENCIES: with the .d file of its object
object_of() {
    mkdir -p "build/host/${1%/*}" && echo "x.o: $1 \\"$'\n'" $2" >"build/host/$1.d"
    echo "${3:-}" >"$1"
}
touch kernels/{norm,check}.h kernels/lanes.cuh llmc/log/log.h scripts/launch.sh README.md
object_of kernels/norm.cu "kernels/norm.h kernels/lanes.cuh"
object_of kernels/flash_gpu.cu "kernels/check.h" '#include "kernels/check.h"'
object_of llmc/log/log_host.cpp llmc/log/log.h
object_of test/operations/norm.cpp kernels/norm.h '.tag = "[norm][one_order]"'
object_of test/kernels/norm_test.cpp kernels/norm.h
object_of test/kernels/check_test.cpp kernels/check.h
object_of test/llmc/log_test.cpp llmc/log/log.h
object_of test/program/run_test.cpp ""
git init -qb main . && printf 'build\nbin\n' >.gitignore && git add . &&
    git -c user.name=it -c user.email=it commit -qm it || wrong "git"
# selects FILE TAGS LAST: after an edit of FILE
selects() {
    local said
    echo "// edited" >>"$1"
    said=$(PATH=$work/bin:$PATH scripts/test.sh changed 2>&1)
    grep -qxF "selected test cases: $2" <<<"$said" || fail "$1 does not select $2: $said"
    [ "$(tail -n 1 <<<"$said")" = "$3" ] || fail "$1: the last line is not \"$3\": $said"
    git checkout -q .
}
selects kernels/norm.cu "[#norm_test] [#run_test] [norm]" "10 passed, 0 failed"
selects kernels/lanes.cuh "[#norm_test] [#run_test] [norm]" "10 passed, 0 failed"
selects kernels/flash_gpu.cu "[#check_test] [#run_test]" "0 passed, 0 failed"
selects llmc/log/log_host.cpp "[#log_test] [#run_test]" "0 passed, 0 failed"
selects test/llmc/log_test.cpp "[#log_test]" "0 passed, 0 failed"
selects scripts/launch.sh none "1 passed, 0 failed"
selects README.md none "0 passed, 0 failed"
PATH=$work/bin:$PATH ends 2 "BASE is \"nowhere\"; expected a commit" scripts/test.sh changed nowhere
exit $failed
