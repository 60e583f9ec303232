#!/usr/bin/env bash
# run_gpt3_125M.sh [FLAG ...] - trains GPT-3 125M on 300 billion tokens of FineWeb, as llm.c's script does
#
#   scripts/run_gpt3_125M.sh --dry-run               prints requirements, time and expected result; no training
#   scripts/run_gpt3_125M.sh                         one rank per GPU; run it again to resume
#   scripts/run_gpt3_125M.sh -x 2000 -o runs/short   any flags of train_gpt2 override those of the recipe
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

name=gpt3_125M
title="GPT-3 125M on 300 billion tokens of FineWeb"
model=gpt3:c768
shards=fineweb100B/fineweb
get_shards="dev/data/prepare fineweb --from FOLDER"
flags=(-b 32 -t 2048 -d 524288 -x 572204 -l 6e-4 -u 700 -q 0.1 -s 20000 -g 144 -n 10000 --keep-checkpoints 5
    --major-every 50000 --skip-loss-z 7 --skip-norm-z 7)
published="llm.c: about 24 hours on 8 A100 80GB; no published result is known:
https://github.com/karpathy/llm.c/blob/master/scripts/run_gpt3_125M.sh
GPT-3 125M: HellaSwag 33.7 %: from its paper, according to llm.c's dev/vislog.ipynb"
recipe "$@"
