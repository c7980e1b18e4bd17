"""Draws the paper's Figures 2 to 4 from two finished runs with a property attack, one of FL and one of CFL.

    python experiments/property/figures.py RUN_FL RUN_CFL --out DIR [--title TITLE]

DIR/maps.svg and .pdf: aggregated updates by t-SNE, of the first fifth of the rounds and of all (Figure 2; with other
runs, Figure 3). DIR/cosine.svg and .pdf: cosines of consecutive aggregated updates over rounds (Figure 4).
DIR/cosine.md: their mean and standard deviation, beside the paper's. The same runs give the same bytes.

Source of figures and printed values: Kim et al., RAID 2023, section 4.4.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_bytes, write_text
from shoal.core.errors import InputError, require
from shoal.core.formats import DASH
from shoal.property.property_page import (
    draw_map,
    half_window,
    kind_keys,
    mean_and_sd,
    rolling_mean,
    tsne_maps,
    updates_by_cluster,
)
from shoal.property.update_table import PROPERTY_COLUMNS
from shoal.reports.charts import fit_rounds
from shoal.reports.plotting import CHANCE_LINE, Figure, LineStyle, cluster_style, figure_files, legend
from shoal.runs.files import read_run, read_table

PAPER = {"FL": "0.3074 ± 0.2752", "CFL, cluster 0": "0.9234 ± 0.1725"}
"""Mean and standard deviation as printed in section 4.4; of the other clusters there is nothing."""

PERIODS = ("first fifth of the rounds", "all rounds")
POINTS = 600
"""Cosines of a model that are drawn as points; the rolling mean is of all."""


@dataclass(frozen=True)
class Cosines:
    """One model's cosines."""

    label: str
    updates: pd.DataFrame
    style: LineStyle


def read(out: Path, *, clustered: bool) -> tuple[Config, pd.DataFrame]:
    """Configuration and updates of a finished run with a property attack, of many models or of one."""
    figures = read_run(out)
    config = read_config(out / "config.toml", allow_code=True)
    require(config.property_attack is not None, f"{out}: has no property attack; run it with [property_attack]")
    many = "clusters.1.clients" in figures
    wanted, other = ("CFL, with several models", "one model") if clustered else ("FL, with one model", "several models")
    require(many == clustered, f"{out}: must be a run of {wanted}; it has {other}")
    return config, read_table(out / "property.csv", PROPERTY_COLUMNS)


def draw_maps(found: dict[str, pd.DataFrame], title: str | None) -> Figure:
    """A row of panels each of FL and CFL."""
    maps = {name: tsne_maps(updates) for name, updates in found.items()}
    for name, each in maps.items():
        require(bool(each), f"the run of {name} has no maps; run it with property_attack.tsne = true and more rounds")

    def draw(figure: MplFigure) -> None:
        cells = figure.subplots(2, 2)
        for row, (name, placed) in zip(cells, maps.items(), strict=True):
            for axes, period in zip(row, PERIODS, strict=True):
                _panel(axes, placed.get(period))
                axes.set_title(f"{name}, {period}")
        _entitle(figure, title)
        legend(figure, kind_keys())

    counts = "; ".join(f"{name}, {period}: {len(each)}" for name, by in maps.items() for period, each in by.items())
    return figure_files(f"Maps of aggregated updates by t-SNE. {counts}.", draw, (6.6, 6.4))


def draw_cosines(models: Sequence[Cosines], title: str | None) -> Figure:
    """Points and rolling means over rounds, a panel each of FL and CFL."""
    rounds = pd.concat([each.updates["round"] for each in models])
    half = half_window(rounds.max())

    def draw(figure: MplFigure) -> None:
        cells = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, panel in zip(cells, (models[:1], models[1:]), strict=True):
            axes.axhline(0, **CHANCE_LINE)
            for each in panel:
                _draw_cosines(axes, each, half)
            axes.set(xlabel="round", ylim=(-1.08, 1.08))
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            fit_rounds(axes, rounds)
        cells[0].set(title="FL", ylabel="cosine with the update before")
        cells[1].set(title=f"CFL, {len(models) - 1} models")
        _entitle(figure, title)
        legend(figure, [_key(each) for each in models], columns=2)

    spreads = "; ".join(f"{each.label} {mean_and_sd(each.updates)}" for each in models)
    return figure_files(f"Cosines of consecutive aggregated updates over rounds: {spreads}.", draw, (7.0, 3.8))


def table(models: Sequence[Cosines]) -> str:
    """Mean and standard deviation, in Markdown."""
    lines = [f"| {each.label} | {mean_and_sd(each.updates, 4)} | {PAPER.get(each.label, DASH)} |" for each in models]
    head = "| cosine of consecutive aggregated updates | mean ± sd | paper |\n|---|---:|---:|"
    return "\n".join([head, *lines]) + "\n"


def _panel(axes: Axes, placed: pd.DataFrame | None) -> None:
    if placed is not None:
        draw_map(axes, placed)
        return
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "too few updates", transform=axes.transAxes, ha="center", va="center")


def _draw_cosines(axes: Axes, each: Cosines, half: int) -> None:
    style, updates = each.style, each.updates
    points = updates.sample(frac=min(1.0, POINTS / len(updates)), random_state=0)
    axes.plot(
        points["round"], points["cosine"], linestyle="", marker=style.marker, color=style.color, markersize=3.0,
        alpha=0.35, markeredgewidth=0,
    )  # fmt: skip
    means = rolling_mean(updates.groupby("round")["cosine"].mean(), half)
    axes.plot(means.index, means, color=style.color, linestyle=style.dashes)


def _key(each: Cosines) -> Line2D:
    style, label = each.style, f"{each.label}: {mean_and_sd(each.updates)}"
    return Line2D([], [], color=style.color, linestyle=style.dashes, marker=style.marker, markersize=4, label=label)


def _entitle(figure: MplFigure, title: str | None) -> None:
    if title:
        figure.suptitle(title, fontsize=11.5)


def write(fl: Path, cfl: Path, out: Path, title: str | None) -> None:
    """Read both runs and write everything that is drawn of them."""
    config, one = read(fl, clustered=False)
    other, many = read(cfl, clustered=True)
    alike = (config.data.source, config.data.task) == (other.data.source, other.data.task)
    require(alike, f"{cfl}: is a run on other data or another task than {fl}; compare runs of the same task")
    models = [Cosines("FL", one, LineStyle("#000000", "-", "X"))]
    models += [Cosines(f"CFL, cluster {k}", own, cluster_style(k + 1)) for k, own in updates_by_cluster(many).items()]
    drawn = {"maps": draw_maps({"FL": one, "CFL": many}, title), "cosine": draw_cosines(models, title)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, each in drawn.items():
            write_bytes(out / f"{name}.svg", each.svg)
            write_bytes(out / f"{name}.pdf", each.pdf)
        write_text(out / "cosine.md", table(models))
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 for bad input, after one sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fl", type=Path, metavar="RUN_FL", help="directory of a finished run of one model")
    parser.add_argument("cfl", type=Path, metavar="RUN_CFL", help="directory of a finished run of several models")
    parser.add_argument("--out", type=Path, required=True, help="directory for the figures")
    parser.add_argument("--title", help="above each figure")
    given = parser.parse_args(arguments)
    try:
        write(given.fl, given.cfl, given.out, given.title)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
