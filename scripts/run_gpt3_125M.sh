#!/usr/bin/env bash
# run_gpt3_125M.sh [FLAG ...] - trains GPT-3 125M on 300 billion tokens of FineWeb, as llm.c's script does
#
#   scripts/run_gpt3_125M.sh --dry-run               what it needs, takes and should reach; trains nothing
#   scripts/run_gpt3_125M.sh                         a rank for each GPU; again, it goes on where the run ended
#   scripts/run_gpt3_125M.sh -x 2000 -o runs/short   any flags of train_gpt2 override those of the recipe
#
# The data: the Parquet files of HuggingFaceFW/fineweb, sample/100BT, made shards of by
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
published="llm.c: about 24 hours on 8 A100 80GB; no result of it is known to us:
https://github.com/karpathy/llm.c/blob/master/scripts/run_gpt3_125M.sh
GPT-3 125M: HellaSwag 33.7 %: its paper, as llm.c's dev/vislog.ipynb has it"
recipe "$@"
