#!/usr/bin/env bash
# run_gpt2_1558M.sh [FLAG ...] - trains GPT-2 1558M on 34 billion tokens of FineWeb-Edu, as llm.c's script does
#
#   scripts/run_gpt2_1558M.sh --dry-run               prints requirements, time and expected result; no training
#   scripts/run_gpt2_1558M.sh                         one rank per GPU; run it again to resume
#   scripts/run_gpt2_1558M.sh -x 2000 -o runs/short   any flags of train_gpt2 override those of the recipe
#
# Data: the Parquet files of HuggingFaceFW/fineweb-edu, sample/100BT, converted to shards with
# dev/data/prepare fineweb-edu --from FOLDER -o data/edu_fineweb100B.
#
# DATA, RANKS, HOSTFILE, PROGRAM and MEASURE: scripts/README.md, "Recipes".
set -euo pipefail
here=$(dirname "$(realpath "$0")")
# shellcheck source=scripts/help.sh
. "$here/help.sh"
# shellcheck source=scripts/recipe.sh
. "$here/recipe.sh"

name=gpt2_1558M
title="GPT-2 1558M on 34 billion tokens of FineWeb-Edu"
model=d48
shards=edu_fineweb100B/edu_fineweb
get_shards="dev/data/prepare fineweb-edu --from FOLDER"
flags=(-b 16 -t 1024 -d 1048576 -x 32000 -l 6e-4 -u 700 -q 0.1 -k cosine -s 300000 -g 384 -n 2000 --keep-checkpoints 5
    --major-every 8000)
published="llm.c: 24 hours on 8 H100 80GB, reaches the HellaSwag accuracy of OpenAI's GPT-2 1558M at about step 25000:
https://github.com/karpathy/llm.c/discussions/677, scripts/run_gpt2_1558M.sh
OpenAI's GPT-2 1558M: HellaSwag 48.9 %: llm.c's dev/vislog.ipynb
validation losses on FineWeb-Edu and on FineWeb are not comparable; no loss of llm.c on FineWeb-Edu is known"
recipe "$@"
