#!/usr/bin/env bash
# changed.sh - scripts/test.sh changed selects the tests that a changed file can break, in a small tree with .d files, a
# make that builds nothing, and test programs that have two cases, of [norm]
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# shellcheck source=test/support/check.sh
. test/support/check.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,scripts,kernels,llmc,test/{kernels,llmc,operations,program},build/{cpu,fibers}}
cp scripts/{test,help}.sh "$work/scripts"
cd "$work" || exit 1
printf '#!/bin/sh\n' | tee bin/make scripts/{get_gpt2_tokenizer,launch}.sh >test/program/sweep.sh
echo "# sweep.sh calls launch.sh" >>test/program/sweep.sh
tee build/{cpu,fibers}/tests >/dev/null <<'PROGRAM'
#!/bin/sh
case "$*" in
    *"[norm][kernels]"*--list-tests) ;;
    *--list-tests) echo "0 matching test cases" ;;
    *) echo "All tests passed (3 assertions in 2 test cases)" ;;
esac
PROGRAM
chmod +x bin/make scripts/*.sh build/*/tests test/program/sweep.sh
# object_of FILE HEADER TEXT: a file with the text, and the .d file of its object
object_of() {
    mkdir -p "build/host/${1%/*}" && echo "x.o: $1 \\"$'\n'" $2 kernels/all.h:" >"build/host/$1.d"
    echo "$3" | tee "$1" >>"$2"
}
object_of kernels/norm.cu kernels/lanes.cuh ""
object_of llmc/log_host.cpp llmc/log.h ""
object_of test/operations/norm.cpp kernels/norm.h '#include "kernels/norm.h" .tag = "[norm][one_order]"'
object_of test/kernels/norm_test.cpp kernels/norm.h '#include "kernels/norm.h"'
object_of test/llmc/model_test.cpp kernels/norm.h ""
object_of test/llmc/log_test.cpp llmc/log.h ""
printf 'build\nbin\n' >.gitignore
git init -qb main && git add . && git -c user.name=it -c user.email=it commit -qm it || wrong "git"
# selects FILE TAGS LAST: after an edit of FILE
selects() {
    local said
    echo "// edited" >>"$1"
    said=$(PATH=$work/bin:$PATH scripts/test.sh changed 2>&1)
    [[ $'\n'$said = *$'\n'"selected test cases: $2"$'\n'*$'\n'"$3" ]] || fail "$1 does not select $2, $3: $said"
    git checkout -q .
}
selects kernels/norm.cu "[#norm_test] [#run_test] [norm]" "6 passed, 0 failed"
selects kernels/lanes.cuh "[#norm_test] [#run_test] [norm]" "6 passed, 0 failed"
selects kernels/norm.h "[#model_test] [#norm_test] [#run_test] [norm]" "6 passed, 0 failed"
selects llmc/log_host.cpp "[#log_test] [#run_test]" "0 passed, 0 failed"
selects test/llmc/log_test.cpp "[#log_test]" "0 passed, 0 failed"
selects scripts/launch.sh none "1 passed, 0 failed"
selects .gitignore none "0 passed, 0 failed"
PATH=$work/bin:$PATH ends 2 "BASE is \"nowhere\"; expected a commit" scripts/test.sh changed nowhere
exit $failed
