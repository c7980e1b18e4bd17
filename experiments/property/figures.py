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

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_bytes, write_text
from shoal.core.errors import InputError, require
from shoal.reports.frames import by_cluster, column
from shoal.reports.plotting import COIN, Forms, Look, cluster_look, forms, legend
from shoal.reports.run.property_curves import drawn_of, early_and_all, half_window, rolling_mean
from shoal.reports.run.property_figures import kinds, mean_and_sd, paint_map
from shoal.reports.run.round_curves import fit
from shoal.reports.run.tables import DASH
from shoal.runs.files import read_run, read_table
from shoal.simulation.property_metrics import PROPERTY_COLUMNS

PAPER = {"FL": "0.3074 ± 0.2752", "CFL, cluster 0": "0.9234 ± 0.1725"}
"""Mean and standard deviation as printed in section 4.4; of the other clusters there is nothing."""

PERIODS = ("first fifth of the rounds", "all rounds")
POINTS = 600
"""Cosines of a model that are drawn as points; the rolling mean is of all."""


@dataclass(frozen=True)
class Course:
    """One model's cosines."""

    label: str
    updates: pd.DataFrame
    look: Look


def read(out: Path, *, clustered: bool) -> tuple[Config, pd.DataFrame]:
    """Configuration and updates of a finished run with a property attack, of many models or of one."""
    figures = read_run(out)
    config = read_config(out / "config.toml")
    require(config.property_attack is not None, f"{out}: has no property attack; run it with [property_attack]")
    many = "clusters.1.clients" in figures
    wanted, other = ("CFL, with several models", "one model") if clustered else ("FL, with one model", "several models")
    require(many == clustered, f"{out}: must be a run of {wanted}; it has {other}")
    return config, read_table(out / "property.csv", PROPERTY_COLUMNS)


def draw_maps(found: dict[str, pd.DataFrame], title: str | None) -> Forms:
    """A row of panels each of FL and CFL."""
    maps = {name: dict(early_and_all(updates)) for name, updates in found.items()}
    for name, each in maps.items():
        require(bool(each), f"the run of {name} has no maps; run it with property_attack.tsne = true and more rounds")

    def paint(figure: Figure) -> None:
        cells = figure.subplots(2, 2)
        for row, (name, placed) in zip(cells, maps.items(), strict=True):
            for axes, period in zip(row, PERIODS, strict=True):
                _panel(axes, placed.get(period))
                axes.set_title(f"{name}, {period}")
        _entitle(figure, title)
        legend(figure, kinds())

    counts = "; ".join(f"{name}, {period}: {len(each)}" for name, by in maps.items() for period, each in by.items())
    return forms("maps", f"Maps of aggregated updates by t-SNE. {counts}.", paint, (6.6, 6.4))


def draw_cosines(courses: Sequence[Course], title: str | None) -> Forms:
    """Points and rolling means over rounds, a panel each of FL and CFL."""
    rounds = np.concatenate([column(each.updates, "round") for each in courses])
    half = half_window(rounds.max())

    def paint(figure: Figure) -> None:
        cells = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, panel in zip(cells, (courses[:1], courses[1:]), strict=True):
            axes.axhline(0, color=COIN, linewidth=1.0, linestyle=":")
            for each in panel:
                _course(axes, each, half)
            axes.set(xlabel="round", ylim=(-1.08, 1.08))
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            fit(axes, rounds)
        cells[0].set(title="FL", ylabel="cosine with the update before")
        cells[1].set(title=f"CFL, {len(courses) - 1} models")
        _entitle(figure, title)
        legend(figure, [_key(each) for each in courses], columns=2)

    told = "; ".join(f"{each.label} {mean_and_sd(each.updates)}" for each in courses)
    return forms("cosine", f"Cosines of consecutive aggregated updates over rounds: {told}.", paint, (7.0, 3.8))


def table(courses: Sequence[Course]) -> str:
    """Mean and standard deviation, in Markdown."""
    lines = [f"| {each.label} | {mean_and_sd(each.updates, 4)} | {PAPER.get(each.label, DASH)} |" for each in courses]
    head = "| cosine of consecutive aggregated updates | mean ± sd | paper |\n|---|---:|---:|"
    return "\n".join([head, *lines]) + "\n"


def _panel(axes: Axes, placed: pd.DataFrame | None) -> None:
    if placed is not None:
        paint_map(axes, placed)
        return
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "too few updates", transform=axes.transAxes, ha="center", va="center")


def _course(axes: Axes, each: Course, half: int) -> None:
    played, values = column(each.updates, "round"), column(each.updates, "cosine")
    shown = drawn_of(len(played), min(1.0, POINTS / len(played)))
    look = each.look
    axes.plot(
        played[shown], values[shown], linestyle="", marker=look.marker, color=look.color, markersize=3.0, alpha=0.35,
        markeredgewidth=0,
    )  # fmt: skip
    axes.plot(played, rolling_mean(played, values, half), color=look.color, linestyle=look.dashes)


def _key(each: Course) -> Line2D:
    label = f"{each.label}: {mean_and_sd(each.updates)}"
    return Line2D(
        [], [], color=each.look.color, linestyle=each.look.dashes, marker=each.look.marker, markersize=4, label=label
    )


def _entitle(figure: Figure, title: str | None) -> None:
    if title:
        figure.suptitle(title, fontsize=11.5)


def write(fl: Path, cfl: Path, out: Path, title: str | None) -> None:
    """Read both runs and write everything that is drawn of them."""
    config, one = read(fl, clustered=False)
    other, many = read(cfl, clustered=True)
    alike = (config.data.source, config.data.task) == (other.data.source, other.data.task)
    require(alike, f"{cfl}: is a run on other data or another task than {fl}; compare runs of the same task")
    courses = [Course("FL", one, Look("#000000", "-", "X"))]
    courses += [Course(f"CFL, cluster {k}", own, cluster_look(k + 1)) for k, own in by_cluster(many)]
    drawn = {"maps": draw_maps({"FL": one, "CFL": many}, title), "cosine": draw_cosines(courses, title)}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, each in drawn.items():
            write_bytes(out / f"{name}.svg", each.svg)
            write_bytes(out / f"{name}.pdf", each.pdf)
        write_text(out / "cosine.md", table(courses))
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
