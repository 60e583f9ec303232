#!/usr/bin/env bash
# help.sh - every program and script prints --help without doing anything else, and refuses unknown arguments and flags
# that are given twice; so does make, which also reports a missing tool, keeps in `make clean` what is slow to make
# again, and installs programs that start in any folder
#
#   test/program/help.sh [BUILD]     with the tools in BUILD (build/cpu)
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
build=${1:-build/cpu}
unset MAKEFLAGS
# answers NAME COMMAND...: checks --help in an empty folder, which must stay empty
answers() {
    local name=$1 said
    shift
    said=$(cd "$work" && timeout 20 "$@" </dev/null 2>&1) || fail "$name --help: exit code $?"
    [ "$(wc -l <<<"$said")" -ge 2 ] || fail "$name --help prints too little: $said"
    ! grep -q 'default: ""' <<<"$said" || fail "$name --help prints an empty default"
    [ -z "$(ls -A "$work")" ] || fail "$name --help leaves something behind"
}
refuses() { one_line "" env -C "$work" timeout 20 "$@" </dev/null; }  # COMMAND...
# fills COMMAND...: checks the output to a full device
fills() {
    says_line 1 "error: cannot write standard output: No space left on device; " bash -c '"$@" >/dev/full' - "$@"
}
root=$PWD
for script in scripts/*.sh dev/{,bench/,mutate/}*.sh dev/gpu_check/pack.sh; do
    case $script in
        scripts/help.sh | scripts/progress.sh | scripts/launch.sh) continue ;;  # to source
    esac
    answers "$script" bash "$root/$script" --help
    case $script in  # accept any argument, as a file or a flag of train_gpt2
        scripts/quickstart.sh | scripts/run_*) ;;
        dev/mutate/mutate_*) ;;  # names of the lines to remove
        *) refuses bash "$root/$script" 1 2 3 4 5 ;;
    esac
done
for source in dev/{,bench/}*.cpp; do
    tool=$(basename "$source" .cpp)
    answers "$tool" "$root/$build/$tool" --help
    refuses "$root/$build/$tool" --word
    refuses "$root/$build/$tool" --help -h
    fills "$root/$build/$tool" --help
done
for tool in plot export_runs.py data/prepare data/parquet_lines.py; do
    answers "dev/$tool" python3 "$root/dev/$tool" --help
    refuses python3 "$root/dev/$tool" --word
done
for twice in "dev/sweep.sh -o a -o b" "dev/gpu_check.sh 1 --list --list" \
    "dev/sweep.sh -o a --vary --lr\ 1 --vary --lr\ 2 -- true -x"; do
    eval "refuses bash $root/$twice"
done
# The text of GPT-2's merges, and others, go to a folder that can be written to.
one_line 'error: FOLDER is "-x", a flag; expected a folder' scripts/get_gpt2_tokenizer.sh -x
one_line 'expected a folder that can be created: File exists' scripts/get_gpt2_tokenizer.sh Makefile
one_line 'error: FILE is "dev"; expected a file' dev/gpu_check/pack.sh dev
said=$(PIP_NO_INDEX=1 scripts/get_gpt2_tokenizer.sh "$work/merges" 2>&1) && fail "GPT-2's merges without a network"
[ "$(wc -l <<<"$said")" = 1 ] && [[ $said = "error: "*" with --merges FILE" ]] || fail "GPT-2's merges: $said"
[ -z "$(ls -A "$work")" ] || fail "GPT-2's merges without a network leave something behind"
answers train_gpt2 "$root/$build/train_gpt2" --help
for request in help version print-config; do fills "$root/$build/train_gpt2" --$request; done
[ "$("$root/$build/train_gpt2" --help 2>&1 | read -r; echo "${PIPESTATUS[0]}")" = 0 ] || fail "--help without a reader"
refuses "$root/$build/train_gpt2" --word

# ---- make, in a tree without sources

tree=$work/tree bin=$work/bin
mkdir -p "$tree"/build/{deps,python,aarch64/root,aarch64/root.partial,cpu} \
    "$tree"/{kernels,llmc,dev,test} "$bin"
cp Makefile config.mk "$tree"
ln -s /usr/bin/* "$bin"
rm "$bin/jq" 2>/dev/null
# makes STATUS EXPECTED ARGUMENTS...: make with these arguments
makes() { ends "$1" "$2" env PATH="${tools:-$PATH}" make -C "$tree" --no-print-directory "${@:3}"; }
makes 0 "Targets:" help
makes 0 "Targets:" help DEVICE=foo SANITIZE=foo NAME=foo
makes 2 'DEVICE is "foo"' DEVICE=foo clean
makes 2 "DEVCIE: unknown on make's command line; expected CCACHE CUBLAS_ROOT CUDA_ARCHS CUDA_HOME" DEVCIE=cpu clean
makes 2 "CFLAGS: unknown on make's command line" DEVICE=cpu CFLAGS="-O3 -g" clean
tools=$bin makes 2 "jq is missing; run: apt-get install jq" DEVICE=cpu compile_commands.json
[ ! -e "$tree/compile_commands.json" ] || fail "make compile_commands.json without jq leaves a file"
makes 0 "rm -rf" DEVICE=cpu EXTRA="-g -O1" clean
kept=$(cd "$tree/build" && find . -mindepth 1 | sort | tr '\n' ' ')
[ "$kept" = "./aarch64 ./aarch64/root ./deps ./python " ] || fail "make clean leaves $kept"

stage=$work/stage
makes 2 "error: ./train_gpt2 is missing; run make first" DEVICE=cpu DESTDIR="$stage" install
ln -s "$root/$build/train_gpt2" "$tree"
ln -s "$root/$build"/{tokenize,generate,export_llmc} "$tree/dev"
makes 0 "" DEVICE=cpu DESTDIR="$stage" PREFIX=/opt install
for tool in tokenize generate export_llmc; do
    cmp "$root/$build/$tool" "$stage/opt/bin/train_gpt2-$tool" || fail "make install: train_gpt2-$tool is another file"
done
said=$(cd / && PATH=$stage/opt/bin:$PATH timeout 20 train_gpt2 --version) && [[ $said = train_gpt2* ]] ||
    fail "make install: train_gpt2 --version prints: $said"
[ -z "$(find "$stage" -type l)" ] || fail "make install installs links"
makes 0 "" DEVICE=cpu DESTDIR="$stage" PREFIX=/opt uninstall
[ -z "$(find "$stage" ! -type d)" ] || fail "make uninstall leaves $(find "$stage" ! -type d)"
[ $failed = 0 ] && echo "every program and make print help and refuse unknown arguments"
exit $failed
