#!/usr/bin/env bash
# same_losses.sh LOG LOG - checks that two runs of train_gpt2 printed the same losses and norms, of at least one step
set -euo pipefail
losses() { awk -F ' *[|] *' '/^step [0-9]/ && NF >= 8 { print $1 ": loss " $2 ", norm " $4 }' "$1"; }
losses "$1" | grep . || { echo "error: $1 has no steps" >&2; exit 1; }
diff <(losses "$1") <(losses "$2")
