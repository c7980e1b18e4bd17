"""How often IFCA finds the true models of the synthetic mixture: the success rates of its section 6.1, cell by cell.

    python experiments/theory/success_rate.py OUT.csv --table p2-m-n

A data set succeeds when, among ten starts and all learning rates, the best run ends with its models on average less
than 0.6 sigma (+ 0.001 in the r-noise tables) from the nearest true model. Learning rates are tried in the order of
--rates and the first success ends the data set, which changes no rate of success. Each finished data set is one line of
OUT.csv; a killed run continues where it was. Progress is on stderr; the table, in Markdown, on stdout.
"""

import sys
import time
from pathlib import Path

import pandas as pd
import torch
from gradient_descent import descend
from mixture import Setting, distance_to_truth, draw_mixture, draw_starts
from results_file import append_row, read_rows, row_key
from success_grid import Plan, parse_arguments, plan_of

from shoal.core.errors import InputError
from shoal.core.randomness import Stream


def best_run(plan: Plan, cell: Setting, seed: int) -> tuple[str, ...]:
    """The best run of one data set: its learning rate, its start, its distance, and 1 if that is a success."""
    stream = Stream(seed)("theory", "mixture")
    mixture, starts = draw_mixture(cell, stream), draw_starts(cell, stream, plan.starts)
    best = (float("inf"), plan.rates[0], 0)
    for rate in plan.rates:
        distances = distance_to_truth(descend(mixture, starts, rate, plan.rounds), mixture.truth)
        best = min(best, (float(distances.min()), rate, int(distances.argmin())))
        if best[0] < success_distance(plan, cell):
            break
    distance, rate, start = best
    return f"{rate:g}", str(start), f"{distance:.4g}", str(int(distance < success_distance(plan, cell)))


def success_distance(plan: Plan, cell: Setting) -> float:
    """The distance below which a run succeeds."""
    return 0.6 * cell.sigma + plan.slack


def run_missing(plan: Plan, path: Path) -> None:
    """Train every data set that ``path`` lacks, in order."""
    rows = read_rows(path)
    missing = [(cell, seed) for cell, seed in plan.data_sets() if row_key(plan, cell, seed) not in rows]
    work = sum(cell.m * cell.n * cell.p for cell, _ in missing)
    began, done = time.monotonic(), 0
    for i, (cell, seed) in enumerate(missing, 1):
        result = best_run(plan, cell, seed)
        append_row(path, row_key(plan, cell, seed), result)
        done += cell.m * cell.n * cell.p
        spent = time.monotonic() - began
        remaining = spent / done * (work - done) / 60
        what = f"p {cell.p}, m {cell.m}, n {cell.n}, r {cell.r:g}, sigma {cell.sigma:g}, data {seed}: {result[2]}"
        times = f"{spent / 60:.1f} min, about {remaining:.0f} min left"
        print(f"{i} of {len(missing)}: {what}; {times}", file=sys.stderr, flush=True)


def success_tables(plan: Plan, path: Path) -> str:
    """The success rates in Markdown: m by n for each r, or sigma by r."""
    rows = read_rows(path)
    data_sets = pd.DataFrame(
        vars(cell) | {"success": float(rows.get(row_key(plan, cell, seed), {}).get("success", "nan"))}
        for cell, seed in plan.data_sets()
    )
    by_noise = plan.table.endswith("r-noise")
    across, down, apart = ("r", "sigma", "m") if by_noise else ("m", "n", "r")
    texts = []
    for value, group in data_sets.groupby(apart, sort=False):
        cells = group.groupby([down, across])["success"].agg(["mean", "count"])
        rates = cells.apply(lambda cell: f"{cell['mean']:.2f} ({cell['count']:.0f})" if cell["count"] else "-", axis=1)
        table = rates.unstack().rename(index="{:g}".format, columns="{:g}".format)
        first, axes = group.iloc[0], f"{down} \\ {across}"
        fixed = f"n = {first['n']:g}" if by_noise else f"sigma = {first['sigma']:g}"
        texts.append(f"p = {first['p']:g}, {apart} = {value:g}, {fixed}: rate of success (data sets)\n")
        texts.append(table.rename_axis(axes).to_markdown(disable_numparse=True) + "\n")
    return "\n".join(texts)


def main() -> None:
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(arguments.threads)
    try:
        plan = plan_of(arguments)
        run_missing(plan, arguments.out)
    except InputError as error:
        sys.exit(f"error: {error}")
    print(success_tables(plan, arguments.out))


if __name__ == "__main__":
    main()
