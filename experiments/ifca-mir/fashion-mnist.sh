#!/usr/bin/env bash
# The runs behind docs/results/evidence.md: IFCA and IFCA-MIR, three seeds. Killed, it goes on where it was.
# IFCA heeds no risk, so its red team works once, after the last round.
set -euo pipefail
cd "$(dirname "$0")/../.."
shoal=${SHOAL:-.venv/bin/shoal}
for seed in 0 1 2; do
  for algorithm in ifca:60 ifca-mir:5; do
    "$shoal" run experiments/ifca-mir/fashion-mnist.toml --resume --set seed=$seed \
      --set "algorithm.name=${algorithm%:*}" --set "red_team.every=${algorithm#*:}" \
      --out "runs/fashion-mnist/${algorithm%:*}-$seed"
  done
done
