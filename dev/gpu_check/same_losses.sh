#!/usr/bin/env bash
# same_losses.sh LOG LOG - checks that two runs of train_gpt2 printed the same losses and norms, of at least one step
set -euo pipefail
losses() { awk '/^step [0-9]/ && $5 ~ /e[-+]/ { print $1 " " $2 ": loss " $4 ", norm " $6 }' "$1"; }
losses "$1" | grep . || { echo "error: $1 has no steps" >&2; exit 1; }
diff <(losses "$1") <(losses "$2")
