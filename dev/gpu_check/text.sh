#!/usr/bin/env bash
# text.sh BIN FOLDER - writes the first 2 MB of the King James Bible to FOLDER as a shard: 537 k of GPT-2's ids, or
# bytes if GPT-2's merges are not available; BIN has the program `tokenize`. Does nothing if there is a shard
#
# Exit code 77, with a line that says why: the shard cannot be made here.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/../../scripts/help.sh"
most_words 2 "$@"
[ $# -eq 2 ] || refuse "expected BIN FOLDER; see --help"
bin=$(realpath "$1") folder=$(realpath -m "$2")
cd "$(dirname "$0")/../.."
compgen -G "$folder/*.bin" >/dev/null && exit 0
command -v bible >/dev/null || { echo "there is no text: the package bible-kjv is not installed"; exit 77; }
make_folder FOLDER "$folder"
text=$(mktemp)
trap 'rm -f "$text"' EXIT
bible -f gen1:1-rev22:21 | awk '(n += length($0) + 1) > 2000000 { exit } { print }' >"$text" || [ -s "$text" ]
tokenizer=gpt2
scripts/get_gpt2_tokenizer.sh >/dev/null 2>&1 || tokenizer=bytes
"$bin/tokenize" -o "$folder" --name bible --tokenizer $tokenizer --document-key '^([^:]+):' --hold-out 0 "$text"
