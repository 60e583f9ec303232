#!/usr/bin/env bash
# help.sh - every program and script prints --help without doing anything else, and refuses unknown arguments
#
#   test/program/help.sh [BUILD]     with the tools in BUILD (build/cpu)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
build=${1:-build/cpu}
unset MAKEFLAGS
failed=0
fail() {
    echo "$1"
    failed=1
}
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
# answers NAME COMMAND...: checks --help in an empty folder, which must stay empty
answers() {
    local name=$1 said
    shift
    said=$(cd "$empty" && timeout 20 "$@" </dev/null 2>&1) || fail "$name --help: exit code $?"
    [ "$(wc -l <<<"$said")" -ge 2 ] || fail "$name --help prints too little: $said"
    ! grep -q 'default: ""' <<<"$said" || fail "$name --help prints an empty default"
    [ -z "$(ls -A "$empty")" ] || fail "$name --help leaves something behind"
}
# refuses NAME COMMAND...
refuses() {
    local name=$1 said status=0
    shift
    said=$(cd "$empty" && timeout 20 "$@" </dev/null 2>&1) || status=$?
    [ $status = 2 ] || fail "$name with an unknown argument: exit code $status, not 2: $said"
    [ "$(wc -l <<<"$said")" = 1 ] || fail "$name with an unknown argument prints more than one line: $said"
}
root=$PWD
for script in scripts/*.sh dev/*.sh; do
    case $script in
        scripts/help.sh | scripts/progress.sh | scripts/launch.sh | scripts/recipe.sh) continue ;;  # to source
        dev/limited_link.sh) continue ;;
    esac
    answers "$script" bash "$root/$script" --help
    case $script in  # accept any argument, as a file or a flag of train_gpt2
        scripts/quickstart.sh | scripts/run_*) ;;
        dev/mutate_*) ;;  # names of the lines to remove
        dev/bench_onebit.sh) refuses "$script" bash "$root/$script" --word ;;
        *) refuses "$script" bash "$root/$script" 1 2 3 4 5 ;;
    esac
done
for source in dev/*.cpp; do
    tool=$(basename "$source" .cpp)
    answers "$tool" "$root/$build/$tool" --help
    refuses "$tool" "$root/$build/$tool" --word
done
for tool in plot watch export_runs.py data/prepare; do
    answers "dev/$tool" python3 "$root/dev/$tool" --help
    refuses "dev/$tool" python3 "$root/dev/$tool" --word
done
answers train_gpt2 "$root/$build/train_gpt2" --help
refuses train_gpt2 "$root/$build/train_gpt2" --word
make -s help DEVICE=tpu | grep -q "^Targets:" || fail "make help depends on other variables"
said=$(make -n DEVCIE=cpu 2>&1) && fail "make accepts an unknown variable"
grep -q "there is no variable DEVCIE; expected DEVICE " <<<"$said" || fail "make with an unknown variable: $said"
[ $failed = 0 ] && echo "every program prints --help and refuses unknown arguments"
exit $failed
