#!/usr/bin/env bash
# run_gpt2_774M.sh [FLAG ...] - trains GPT-2 774M on 150 billion tokens of FineWeb, as llm.c's script does
#
#   scripts/run_gpt2_774M.sh --dry-run               prints requirements, time and expected result; no training
#   scripts/run_gpt2_774M.sh                         one rank per GPU; run it again to resume
#   scripts/run_gpt2_774M.sh -x 2000 -o runs/short   any flags of train_gpt2 override those of the recipe
#
# Data: the Parquet files of HuggingFaceFW/fineweb, sample/100BT, converted to shards with
# dev/data/prepare fineweb --from FOLDER -o data/fineweb100B.
#
# DATA, RANKS, HOSTFILE, PROGRAM and MEASURE: scripts/README.md, "Recipes".
set -euo pipefail
here=$(dirname "$(realpath "$0")")
# shellcheck source=scripts/help.sh
. "$here/help.sh"
# shellcheck source=scripts/recipe.sh
. "$here/recipe.sh"

name=gpt2_774M
title="GPT-2 774M on 150 billion tokens of FineWeb"
model=d36
shards=fineweb100B/fineweb
get_shards="dev/data/prepare fineweb --from FOLDER"
flags=(-b 32 -t 1024 -d 524288 -x 286102 -l 2.5e-4 -u 700 -q 0 -s 300000 -g 144 -n 4000 --keep-checkpoints 5
    --major-every 40000)
published="llm.c: about 6 days on 8 A100 80GB, 1.5 passes over 100 billion tokens; no published loss is known:
https://github.com/karpathy/llm.c/discussions/580, scripts/run_gpt2_774M.sh
OpenAI's GPT-2 774M on FineWeb's validation tokens: 3.001, HellaSwag 43.2 %: llm.c's dev/vislog.ipynb"
recipe "$@"
