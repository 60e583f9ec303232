#!/usr/bin/env bash
# run_gpt2_124M.sh [FLAG ...] - trains GPT-2 124M on 10 billion tokens of FineWeb, as llm.c's script does
#
#   scripts/run_gpt2_124M.sh --dry-run               prints requirements, time and expected result; no training
#   scripts/run_gpt2_124M.sh                         one rank per GPU; run it again to resume
#   scripts/run_gpt2_124M.sh -x 2000 -o runs/short   any flags of train_gpt2 override those of the recipe
#
# Data: dev/data/prepare fineweb, or llm.c's shards in data/fineweb10B.
#
# DATA, RANKS, HOSTFILE, PROGRAM and MEASURE: scripts/README.md, "Recipes".
set -euo pipefail
here=$(dirname "$(realpath "$0")")
# shellcheck source=scripts/help.sh
. "$here/help.sh"
# shellcheck source=scripts/recipe.sh
. "$here/recipe.sh"

name=gpt2_124M
title="GPT-2 124M on 10 billion tokens of FineWeb"
model=d12
shards="fineweb10B/fineweb fineweb/fineweb"
get_shards="dev/data/prepare fineweb"
flags=(-b 64 -t 1024 -d 524288 -x 18865 -l 6e-4 -u 700 -q 0 -s 20000 -g 144 -n 5000)
published="llm.c: validation loss about 3.29, HellaSwag 29.9 %, in 94 minutes on 8 A100 80GB:
https://github.com/karpathy/llm.c/discussions/481, scripts/run_gpt2_124M.sh
OpenAI's GPT-2 124M on the same tokens: 3.425, HellaSwag 29.4 %: llm.c's dev/vislog.ipynb
to plot this run with llm.c's curve: dev/plot OUT --reference 124M --x tokens"
recipe "$@"
