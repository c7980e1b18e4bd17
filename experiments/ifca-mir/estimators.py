"""Compares the estimates of risk that a server can make with the one that only a simulator can.

    shoal sweep experiments/ifca-mir/small/estimators.toml --jobs 2
    python experiments/ifca-mir/estimators.py runs/estimators docs/results/ifca-mir/estimators

Runs of one seed and size train the same models bit for bit, so their estimates are of the same models in the same
rounds. Written: OUT/estimators.md and .csv, OUT/estimators.svg and .pdf.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from shoal.core.atomic_files import write_bytes, write_text
from shoal.reports.plotting import CHANCE_LINE, cluster_style, figure_files
from shoal.runs.files import read_table
from shoal.simulation.measure import ROUND_COLUMNS
from shoal.sweeps import read_sweep
from shoal.sweeps.results_table import read_results

SIZE = "data.examples_per_client"
KIND = "red_team.estimator"
TRUTH = "audit"
"""The estimate on all members, which the others are judged by."""


def estimates(sweep: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Risks by size, seed, round and cluster, a column an estimator; and the seconds an estimate took.

    Clusters without clients are left out: there is nobody to be exposed.
    """
    asked = read_sweep(sweep / "sweep.toml")
    runs = read_results(sweep, asked.axes)
    every = asked.runs[0].config.red_team.every
    parts, seconds = [], []
    for run in runs.to_dict("records"):
        rounds = read_table(sweep / "runs" / str(run["run"]) / "rounds.csv", ROUND_COLUMNS)
        kept = rounds[(rounds["round"] % every == 0) & (rounds["clients"] > 0)]
        place = {SIZE: run[SIZE], "seed": run["seed"], KIND: run[KIND]}
        parts.append(kept[["round", "cluster", "clients", "train_loss", "risk"]].assign(**place))
        seconds.append(place | {"seconds": run["seconds.red_team"] / (rounds["round"].max() // every)})
    long = pd.concat(parts, ignore_index=True)
    same = ["round", "cluster", "clients", "train_loss", SIZE, "seed"]
    wide = long.pivot_table(index=same, columns=KIND, values="risk").reset_index()
    unmatched = int(wide.isna().any(axis=1).sum())
    if unmatched:
        sys.exit(f"{sweep}: {unmatched} models are not in all runs of their seed; finish the sweep first")
    return wide, pd.DataFrame(seconds)


def judged(risks: pd.DataFrame, seconds: pd.DataFrame) -> pd.DataFrame:
    """By size and estimator, mean and standard deviation over seeds of how an estimate differs from the truth."""
    rows = []
    for (size, seed), mine in risks.groupby([SIZE, "seed"]):
        both = mine.groupby("round").filter(lambda models: len(models) == 2)
        for kind in (each for each in ("shadow", "federated", TRUTH) if each in mine):
            error = mine[kind] - mine[TRUTH]
            told, true = (
                both.sort_values("cluster").groupby("round")[name].agg(lambda pair: pair.iloc[0] - pair.iloc[1])
                for name in (kind, TRUTH)
            )
            varies = mine[kind].nunique() > 1 and mine[TRUTH].nunique() > 1
            rows.append({
                SIZE: size, "estimator": kind, "seed": seed, "audit": mine[TRUTH].mean(), "bias": error.mean(),
                "error": error.abs().mean(),
                "rank correlation": spearmanr(mine[kind], mine[TRUTH]).statistic if varies else np.nan,
                "safer model right": float((np.sign(told) == np.sign(true)).mean()) if len(told) else np.nan,
                "estimates": len(mine), "pairs": len(told),
            })  # fmt: skip
    cost = seconds.rename(columns={KIND: "estimator"})
    return pd.DataFrame(rows).merge(cost, on=[SIZE, "estimator", "seed"])


def table(by_seed: pd.DataFrame) -> str:
    """Markdown, a line a size and estimator."""
    figures = ["audit", "bias", "error", "rank correlation", "safer model right", "seconds"]
    heads = ["images per client", "estimator", "audit", "bias", "mean absolute error", "rank correlation with audit",
             "says rightly which model is safer", "seconds an estimate"]  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---:|---|" + "---:|" * len(figures)]
    order = {"shadow": 0, "federated": 1, TRUTH: 2}
    for (size, kind), mine in sorted(
        by_seed.groupby([SIZE, "estimator"]), key=lambda each: (each[0][0], order[each[0][1]])
    ):
        cells = [f"{mine[name].mean():.3f} ± {mine[name].std():.3f}" for name in figures[:-1]]
        cells.append(f"{mine['seconds'].mean():.1f}")
        lines.append(f"| {size} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(figure: Figure, risks: pd.DataFrame) -> None:
    """A panel an estimator: what it said against the truth, a mark a model and round."""
    kinds = [kind for kind in ("shadow", "federated") if kind in risks]
    panels = figure.subplots(1, len(kinds), sharex=True, sharey=True, squeeze=False)[0]
    values = risks[[*kinds, TRUTH]].to_numpy()
    low, high = values.min() - 0.01, values.max() + 0.01
    for panel, kind in zip(panels, kinds, strict=True):
        panel.plot([low, high], [low, high], **CHANCE_LINE, label="right")
        for i, (size, mine) in enumerate(risks.groupby(SIZE)):
            panel.scatter(
                mine[TRUTH], mine[kind], s=14, marker=cluster_style(i).marker, color=cluster_style(i).color,
                alpha=0.6, linewidths=0, label=f"{size} images per client",
            )  # fmt: skip
        panel.set(xlim=(low, high), ylim=(low, high), aspect="equal", title=kind, xlabel="risk by audit")
    panels[0].set_ylabel("risk by the estimator")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    risks, seconds = estimates(given.sweep)
    by_seed = judged(risks, seconds)
    given.out.mkdir(parents=True, exist_ok=True)
    write_text(given.out / "estimators.csv", by_seed.to_csv(index=False))
    write_text(given.out / "estimators.md", table(by_seed))
    drawn = figure_files("Estimates of risk against the audit", lambda figure: draw(figure, risks), (6.4, 4.0))
    write_bytes(given.out / "estimators.svg", drawn.svg)
    write_bytes(given.out / "estimators.pdf", drawn.pdf)
    print(table(by_seed))


if __name__ == "__main__":
    main()
