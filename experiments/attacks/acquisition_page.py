"""The figure and the tables of `model_acquisition.py`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "control"))
from made_by import made_by
from paired_differences import differences, spread

from shoal.reports.plotting import CHANCE_LINE, cluster_style, figure_files, legend

SHOWN = (1, 2, 4, 8)
"""Numbers of sybils in the table."""


def by_seed(shares: pd.DataFrame, attack: str, defense: str) -> pd.DataFrame:
    """The share (seeds x sybils)."""
    mine = shares[(shares["attack"] == attack) & (shares["defense"] == defense)]
    return mine.pivot_table(index="seed", columns="sybils", values="share")


def acquisition_figure(shares: pd.DataFrame) -> bytes:
    """An SVG file: share of models against sybils, by attack without a defence, and of the adaptive one by defence."""
    defended = shares[(shares["attack"] == "adaptive")]
    panels = (
        ("no defence, by attack", [(each, "none", each) for each in shares["attack"].unique()]),
        ("adaptive attack, by defence", [("adaptive", each, each) for each in defended["defense"].unique()]),
    )

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(panels), 1, sharex=True)
        for axes, (title, lines) in zip(rows, panels, strict=True):
            handles = []
            for i, (attack, defense, name) in enumerate(lines):
                wide, style = by_seed(shares, attack, defense), cluster_style(i)
                # Apart, where several lines lie on one another.
                at = wide.columns.to_numpy() + 0.07 * (i - (len(lines) - 1) / 2)
                drawn = {"color": style.color, "linestyle": style.dashes, "marker": style.marker}
                axes.errorbar(at, wide.mean(), yerr=wide.std().fillna(0), capsize=2, elinewidth=0.9, **drawn)
                handles.append(Line2D([], [], label=name, **drawn))
            axes.axhline(1, **CHANCE_LINE)
            axes.set_title(title)
            axes.set_ylim(-0.05, 1.12)
            axes.set_ylabel("share of the models obtained")
            axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
        rows[-1].set_xlabel("sybils")
        rows[-1].set_xticks(sorted(shares["sybils"].unique()))
        legend(figure, [
            Line2D([], [], color="#555555", marker="|", label="mean ± standard deviation over seeds"),
            Line2D([], [], label="all models", **CHANCE_LINE),
        ], columns=2)  # fmt: skip

    alt = "Share of CFL's models that sybils obtain against their number, by attack, and by defence."
    return figure_files(alt, draw, (7.8, 7.0)).svg


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    parts = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(line)} |" for line in lines)]
    return "\n".join(parts) + "\n"


def shares_table(shares: pd.DataFrame) -> str:
    """A line an attack and defence: the share by numbers of sybils, how many joined, rounds and models at the end."""
    numbers = [each for each in SHOWN if each in set(shares["sybils"])]
    lines = []
    for (attack, defense), mine in shares.groupby(["attack", "defense"], sort=False):
        wide = by_seed(shares, str(attack), str(defense))
        last = mine[mine["sybils"] == mine["sybils"].max()]
        ends = [f"{last[name].mean():.1f}" for name in ("joined", "rounds", "models")]
        lines.append([str(attack), str(defense), *(spread(wide[each]) for each in numbers), *ends])
    heads = ["attack", "defence", *(f"{each} sybil{'s' * (each > 1)}" for each in numbers)]
    return _table([*heads, "joined", "rounds to the last new model", "clusters at the end"], lines)


def newcomers_table(newcomers: pd.DataFrame) -> str:
    """A line a defence, of newcomers with all their examples and with few."""
    shown, lines = ("own", "other", "divided", "refused", "honest_of_all_groups"), []
    for (examples, defense), mine in newcomers.groupby(["examples", "defense"], sort=False):
        lines.append([str(defense), str(examples), *(spread(mine[name]) for name in shown)])
    heads = [
        "defence", "examples", "own group's cluster", "another group's", "divided off later", "refused",
        "honest sybils, share of models",
    ]  # fmt: skip
    return _table(heads, lines)


def membership_table(membership: pd.DataFrame) -> str:
    """Two lines: members of the attacker's own cluster, and of the others."""
    lines = []
    for own, whose in ((True, "own cluster"), (False, "other clusters")):
        mine = membership[membership["own"] == own].groupby("seed")[["own_model", "harvest", "other_clusters"]].mean()
        cells = [spread(mine["own_model"])]
        for name in ("harvest", "other_clusters"):
            mean, interval, _ = differences(mine[name] - mine["own_model"])
            cells += [spread(mine[name]), f"{mean}, {interval}"]
        lines.append([whose, *cells])
    heads = [
        "members of", "own model", "harvest", "less own model, 95 %", "harvest, less other clusters' models",
        "less own model, 95 %",
    ]  # fmt: skip
    return _table(heads, lines)


def page(frames: dict[str, pd.DataFrame], command: str, seeds: Sequence[int]) -> str:
    """The tables, and how they were made."""
    return "\n".join([
        "# Global model acquisition on CFL\n",
        "Share of the models of the clusters that sybils were sent, mean ± standard deviation over seeds.\n",
        "![Share of the models obtained against sybils](model-acquisition.svg)\n",
        shares_table(frames["shares"]),
        "Honest newcomers, and sybils that send honest updates on examples of all groups, one each:\n",
        newcomers_table(frames["newcomers"]),
        "Membership inference by the loss, AUC, with what the adaptive attack without a defence obtained:\n",
        membership_table(frames["membership"]),
        f"{made_by(command)}; seeds {', '.join(map(str, seeds))}.\n",
    ])  # fmt: skip
