"""How often IFCA finds the truths of the synthetic mixture: the success rates of its section 6.1, cell by cell.

    python experiments/theory/success_rate.py OUT.csv --table p2-m-n

A data set succeeds when, among ten starts and all learning rates, the best run ends with its models on average less
than 0.6 sigma (+ 0.001 in the r-noise tables) from the nearest truth. Learning rates are tried in the order of --rates
and the first success ends the data set, which changes no rate of success. Each finished data set is one line of
OUT.csv; a killed run goes on where it was. Progress is on stderr; the table, in Markdown, on stdout.
"""

import sys
import time
from pathlib import Path

import torch
from gradient_descent import descend
from mixture import Setting, draw, nearest, starts
from results_file import append, key, rows
from success_grid import Plan, parsed, planned

from shoal.core.errors import InputError
from shoal.core.randomness import Stream


def trained(plan: Plan, cell: Setting, seed: int) -> tuple[str, ...]:
    """The best run of one data set: its learning rate, its start, its distance, and 1 if that is near enough."""
    stream = Stream(seed)("theory", "mixture")
    mixture, first = draw(cell, stream), starts(cell, stream, plan.starts)
    best = (float("inf"), plan.rates[0], 0)
    for rate in plan.rates:
        apart = nearest(descend(mixture, first, rate, plan.rounds), mixture.truth)
        best = min(best, (float(apart.min()), rate, int(apart.argmin())))
        if best[0] < near(plan, cell):
            break
    distance, rate, start = best
    return f"{rate:g}", str(start), f"{distance:.4g}", str(int(distance < near(plan, cell)))


def near(plan: Plan, cell: Setting) -> float:
    """The distance below which a run succeeds."""
    return 0.6 * cell.sigma + plan.slack


def run(plan: Plan, path: Path) -> None:
    """Train every data set that ``path`` lacks, in order."""
    known = rows(path)
    left = [(cell, seed) for cell, seed in plan.data_sets() if key(plan, cell, seed) not in known]
    work = sum(cell.m * cell.n * cell.p for cell, _ in left)
    began, done = time.monotonic(), 0
    for i, (cell, seed) in enumerate(left, 1):
        found = trained(plan, cell, seed)
        append(path, key(plan, cell, seed), found)
        done += cell.m * cell.n * cell.p
        spent = time.monotonic() - began
        ahead = spent / done * (work - done) / 60
        what = f"p {cell.p}, m {cell.m}, n {cell.n}, r {cell.r:g}, sigma {cell.sigma:g}, data {seed}: {found[2]}"
        left_over = f"{spent / 60:.1f} min, about {ahead:.0f} min left"
        print(f"{i} of {len(left)}: {what}; {left_over}", file=sys.stderr, flush=True)


def shown(plan: Plan, path: Path) -> str:
    """The rates of success in Markdown: m by n for each r, or sigma by r."""
    known = rows(path)
    found: dict[Setting, list[int]] = {}
    for cell, seed in plan.data_sets():
        if (row := known.get(key(plan, cell, seed))) is not None:
            found.setdefault(cell, []).append(int(row["success"]))
    by_noise = plan.table.endswith("r-noise")
    across, down, apart = ("r", "sigma", "m") if by_noise else ("m", "n", "r")
    parts = []
    for value in dict.fromkeys(getattr(cell, apart) for cell in plan.cells):
        mine = [cell for cell in plan.cells if getattr(cell, apart) == value]
        columns, lines = (sorted({getattr(cell, name) for cell in mine}) for name in (across, down))
        fixed = f"n = {mine[0].n}" if by_noise else f"sigma = {mine[0].sigma:g}"
        text = [f"p = {mine[0].p}, {apart} = {value:g}, {fixed}: rate of success (data sets)", ""]
        text += [f"| {down} \\ {across} | " + " | ".join(f"{each:g}" for each in columns) + " |"]
        text += ["|---|" + "---:|" * len(columns)]
        for low in lines:
            at = {getattr(cell, across): found.get(cell, []) for cell in mine if getattr(cell, down) == low}
            cells = [f"{sum(got) / len(got):.2f} ({len(got)})" if (got := at.get(c, [])) else "-" for c in columns]
            text.append(f"| {low:g} | {' | '.join(cells)} |")
        parts.append("\n".join(text))
    return "\n\n".join(parts)


def main() -> None:
    given = parsed(__doc__)
    torch.set_num_threads(given.threads)
    try:
        plan = planned(given)
        run(plan, given.out)
    except InputError as error:
        sys.exit(f"error: {error}")
    print(shown(plan, given.out))


if __name__ == "__main__":
    main()
