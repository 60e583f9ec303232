#!/usr/bin/env bash
# same_losses.sh LOG LOG - whether two runs of train_gpt2 have printed the same losses and norms, and any
set -euo pipefail
losses() { awk -F ' *[|] *' '/^step [0-9]/ && NF >= 8 { print $1 ": loss " $2 ", norm " $4 }' "$1"; }
losses "$1" | grep . || { echo "error: $1 has no steps" >&2; exit 1; }
diff <(losses "$1") <(losses "$2")
