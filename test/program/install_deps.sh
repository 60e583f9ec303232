#!/usr/bin/env bash
# install_deps.sh - scripts/install_deps.sh reports a library that is too old, its version and the one required. Headers
# of old versions come before the system's in the search path, and an apt-get that installs nothing before apt-get
# shellcheck source=test/support/check.sh
. "$(dirname "$0")/../support/check.sh"
for name in apt-get sudo; do tool $name <<<'#!/bin/sh'; done
# old HEADER EXPECTED TEXT: checks the error when HEADER has this text
old() {
    rm -rf "$work/include"
    mkdir -p "$(dirname "$work/include/$1")"
    echo "$3" >"$work/include/$1"
    one_line "error: $2" env PATH="$work/bin:$PATH" CXX="g++ -isystem $work/include" scripts/install_deps.sh
}
old cxxopts.hpp "cxxopts is 1.4.2; expected version 2.2, Debian's and Ubuntu's packages: libcxxopts-dev (" '
#define CXXOPTS__VERSION_MAJOR 1
#define CXXOPTS__VERSION_MINOR 4
#define CXXOPTS__VERSION_PATCH 2
namespace cxxopts { class Options {}; class OptionException {}; }'
old zstd.h "zstd is missing; expected version 1.3, Debian's and Ubuntu's packages: libzstd-dev" '#include <not/there.h>'
refuses() { one_line "$1" env PATH="$work/bin:$PATH" "${@:2}"; }  # EXPECTED COMMAND...
refuses 'error: unexpected argument "test"; see install_deps.sh --help' scripts/install_deps.sh test
refuses 'error: CXX is "absent++", which cannot compile a small C++20 program; expected g++ 11 or clang++ 14' \
    env CXX=absent++ scripts/install_deps.sh
mkdir "$work/some"  # all of PATH but jq
IFS=: read -ra folders <<<"$PATH"
for ((i = ${#folders[@]} - 1; i >= 0; i--)); do ln -sf "${folders[i]}"/* "$work/some/" 2>/dev/null; done
rm "$work/some/jq"
refuses 'error: these are still missing after apt-get installed them: jq; check PATH' \
    env PATH="$work/bin:$work/some" scripts/install_deps.sh
[ $failed = 0 ] && echo "old libraries are reported with their version and the one required"
exit $failed
