#!/usr/bin/env bash
# run_gpt2_350M.sh [FLAG ...] - trains GPT-2 350M on 31 billion tokens of FineWeb, as llm.c's script does
#
#   scripts/run_gpt2_350M.sh --dry-run               prints requirements, time and expected result; no training
#   scripts/run_gpt2_350M.sh                         one rank per GPU; run it again to resume
#   scripts/run_gpt2_350M.sh -x 2000 -o runs/short   any flags of train_gpt2 override those of the recipe
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

name=gpt2_350M
title="GPT-2 350M on 31 billion tokens of FineWeb"
model=d24
shards=fineweb100B/fineweb
get_shards="dev/data/prepare fineweb --from FOLDER"
flags=(-b 64 -t 1024 -d 524288 -x 60000 -l 3e-4 -u 700 -q 0 -s 100000 -g 144 -n 2000 --keep-checkpoints 5
    --major-every 20000)
published="llm.c: 13.7 hours on 8 A100 80GB; no published loss is known:
https://github.com/karpathy/llm.c/blob/master/scripts/run_gpt2_350M.sh
OpenAI's GPT-2 350M on FineWeb's validation tokens: 3.083, HellaSwag 37.5 %: llm.c's dev/vislog.ipynb"
recipe "$@"
