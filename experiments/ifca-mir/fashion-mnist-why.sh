#!/usr/bin/env bash
# Why IFCA's clusters are not the groups, and what they would leak if they were (docs/results/evidence.md).
# First each group alone, one model each; then IFCA and IFCA-MIR with the official rule for initial models.
set -euo pipefail
cd "$(dirname "$0")/../.."
shoal=${SHOAL:-.venv/bin/shoal}
for group in minority majority; do
  for seed in 0 1 2; do
    "$shoal" run "experiments/ifca-mir/alone-$group.toml" --resume --set seed=$seed \
      --out "runs/fashion-mnist/alone-$group-$seed"
  done
done
for seed in 0 1 2; do
  for algorithm in ifca:60 ifca-mir:5; do
    "$shoal" run experiments/ifca-mir/fashion-mnist.toml --resume --set seed=$seed \
      --set "algorithm.name=${algorithm%:*}" --set "red_team.every=${algorithm#*:}" \
      --set algorithm.redraw.share=0.35 --out "runs/fashion-mnist/redraw-${algorithm%:*}-$seed"
  done
done
