"""The demonstration: who could recognise a minority's records, who does, what protects them, and at what price.

``make demo`` runs it. It calls the commands that it prints, and ends with eight lines and one page, whose every
sentence follows from the runs' figures: another seed may have other sentences.
"""

import argparse
import contextlib
import csv
import io
import json
import logging
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure

from shoal.audit.finding import Estimate
from shoal.cli.app import main as shoal
from shoal.core.atomic_files import write_text
from shoal.core.formats import capitalize
from shoal.reports import plotting as plot
from shoal.reports.page import Section, render

HERE = Path(os.path.relpath(Path(__file__).parent))
BASE, PROTECTED = HERE / "sideways.toml", HERE / "protected.toml"
SERVER_ALONE = [
    'algorithm.name="server-only"', "algorithm.rounds=1", "local.learning_rate=1.0",
    'model={name="logistic", features={dimension=48}}',
]  # fmt: skip
"""The same features as the protected federation, trained on the server's labelled images."""
CLIENTS_ALONE = ['algorithm.name="local"']
WHO = {"server": "the server", "client": "another client", "outsider": "an outsider"}


class Outcome(NamedTuple):
    """One federation: what summary.json says, and audit.json where it was attacked."""

    summary: Mapping[str, Any]
    audit: Mapping[str, Any]

    @staticmethod
    def of(run: Path) -> "Outcome":
        """What a run's directory says."""
        audit = run / "audit.json"
        audited = json.loads(audit.read_text()) if audit.exists() else {}
        return Outcome(json.loads((run / "summary.json").read_text()), audited)

    @property
    def accuracy(self) -> Estimate:
        """On the minority's test examples."""
        return Estimate.of_rate(self.summary["accuracy.minority"], self.summary["test_examples.minority"])

    def exposure(self, view: str) -> Estimate:
        """The finding on the minority's records for a view."""
        of_group = (one for one in self.audit["findings"] if (one["view"], one["group"]) == (view, "minority"))
        return next(Estimate(one["accuracy"], one["low"], one["high"]) for one in of_group)


def commands(out: Path, seed: int, references: int, changes: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """The commands of ``shoal`` by name of their output, each under a title."""

    def sets(*changes: str) -> list[str]:
        return [part for change in changes for part in ("--set", change)]

    def run(config: Path, name: str, *more: str) -> list[str]:
        return ["run", str(config), *sets(*more, *common), "--out", str(out / name)]

    def audit(name: str) -> list[str]:
        return ["audit", str(out / name), "--references", str(references)]

    common = [*([f"seed={seed}"] if seed else []), *changes]
    return {
        "preflight": (
            "Before anything is trained: who could recognise a record?",
            ["preflight", str(BASE), *sets(*common)],
        ),
        "server-alone": ("The server alone, with its own labelled images", run(BASE, "server-alone", *SERVER_ALONE)),
        "clients-alone": ("Each client alone", run(BASE, "clients-alone", *CLIENTS_ALONE)),
        "ifca": ("Together: IFCA, a model for each group", run(BASE, "ifca")),
        "ifca-audit": ("IFCA, attacked", audit("ifca")),
        "protected": ("Together, protected", run(PROTECTED, "protected")),
        "protected-audit": ("The protected federation, by the same attackers", audit("protected")),
    }


def shown(name: str, out: Path, said: str) -> list[str]:
    """The part of a command's output that the demonstration shows; demo.log has the rest."""
    if name == "preflight":
        return said.splitlines()[1:4]
    if name.endswith("-audit"):
        return [line for line in said.splitlines() if line.startswith(("view", *WHO))]
    summary = Outcome.of(out / name).summary
    figures = {of: f"{100 * summary[f'accuracy.{of}']:.1f} %" for of in ("overall", "minority", "majority")}
    return [f"Test accuracy {figures['overall']}: minority {figures['minority']}, majority {figures['majority']}"]


def points(change: Estimate) -> str:
    """A difference of accuracies in words."""
    return f"{100 * change.value:+.0f} points ({100 * change.low:+.0f} to {100 * change.high:+.0f})"


def percent(one: Estimate) -> str:
    """A rate and its interval in words."""
    return f"{100 * one.value:.0f} % ({100 * one.low:.0f} to {100 * one.high:.0f})"


def views_in_words(attacked: Outcome, views: Sequence[str] = tuple(WHO)) -> str:
    """The attack accuracy of each view on the minority's records, and whether it is above chance."""
    exposures = {WHO[view]: attacked.exposure(view) for view in views}
    accuracy = {who: percent(one) for who, one in exposures.items()}
    verdicts = {who: one.verdict for who, one in exposures.items()}
    rates = ", ".join(f"{_of(accuracy, rate)} {rate}" for rate in dict.fromkeys(accuracy.values()))
    judged = ", ".join(f"{verdict}: {_of(verdicts, verdict)}" for verdict in dict.fromkeys(verdicts.values()))
    return f"Attack accuracy: {rates}; chance 50 %. {capitalize(judged)}."


def _of(said: Mapping[str, str], what: str) -> str:
    """Groups with the same sentence."""
    who = [one for one in said if said[one] == what]
    return "all three" if len(who) == len(said) > 2 else " and ".join(who)


def lines(outcomes: Mapping[str, Outcome], clients: Mapping[str, int], page: Path) -> list[str]:
    """The eight lines at the end.

    Args:
        outcomes: by name of the run.
        clients: their number by group.
        page: its path.
    """
    ifca, protected, alone = outcomes["ifca"], outcomes["protected"], outcomes["clients-alone"]
    accuracy = {name: f"{100 * outcome.accuracy.value:.0f}" for name, outcome in outcomes.items()}
    better = max((outcomes["server-alone"].accuracy, alone.accuracy), key=lambda one: one.value)
    gain, kept = ifca.accuracy.minus(better), protected.accuracy.minus(better)
    cost = protected.accuracy.minus(ifca.accuracy)
    everybody = [100 * outcome.summary["accuracy.overall"] for outcome in (ifca, protected)]
    views = {name: views_in_words(outcomes[name]) for name in ("ifca", "protected")}
    epsilon = {view: protected.summary[f"epsilon.{view}"] for view in WHO}
    most = {view: f"{100 * protected.summary[f'bound.{view}.accuracy']:.0f} %" for view in WHO}
    return [
        f"{sum(clients.values())} clients train on digits. The {clients['minority']} minority clients hold digits "
        "rotated by 90 degrees; the server's own images are upright.",
        f"Accuracy of the minority: {accuracy['server-alone']} % with the server's images, "
        f"{accuracy['clients-alone']} % with a client's own, {accuracy['ifca']} % with IFCA: "
        + ("federation pays." if gain.low > 0 else "these runs do not show that federation pays."),
        f"IFCA, attacked: was a record of the minority used for training? {views['ifca']}",
        f"The protected federation, by the same attacks: {views['protected']} The server's figure is without secure "
        "sums; with them it sees no more than another client.",
        f"The price: overall accuracy goes from {everybody[0]:.0f} to {everybody[1]:.0f} %, that of the minority from "
        f"{accuracy['ifca']} to {accuracy['protected']} %: {points(cost)}"
        + (", a loss." if cost.high < 0 else ", within the margin of error." if cost.low < 0 else "."),
        f"What remains of the gain: the minority is {points(kept)} above the better of server and clients alone"
        + ("." if kept.low > 0 else ", within the margin of error."),
        f"The guarantee at delta {protected.summary['delta']:g}: epsilon {epsilon['client']:.1f} against other "
        f"clients, whose attacks cannot exceed {most['client']}; {epsilon['server']:.0f} and {most['server']} against "
        "a server without secure sums.",
        f"The page: {page}",
    ]


def figures(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """The figures behind the lines, by name of the run."""
    row: dict[str, float] = {}
    for name, outcome in outcomes.items():
        row |= {f"{name} accuracy {of}": outcome.summary[f"accuracy.{of}"] for of in ("overall", "minority")}
        for view in WHO if outcome.audit else ():
            one = outcome.exposure(view)
            row |= {
                f"{name} {view}{end}": value for end, value in (("", one.value), (" low", one.low), (" high", one.high))
            }
    return row | {f"epsilon {view}": outcomes["protected"].summary[f"epsilon.{view}"] for view in WHO}


def picture(outcomes: Mapping[str, Outcome]) -> plot.Figure:
    """Accuracy of the minority above its exposure to each view, as it is and protected."""
    names = {"server-alone": "server alone", "clients-alone": "clients alone", "ifca": "IFCA", "protected": "protected"}
    styles = {name: plot.group_style(g).mark for g, name in enumerate(("ifca", "protected"))}

    def draw_bars(axes: Axes, y: Sequence[float], estimates: Sequence[Estimate], style: Mapping[str, Any]) -> None:
        value, low, high = np.array([(e.value, e.low, e.high) for e in estimates]).T
        axes.errorbar(value, y, xerr=[value - low, high - value], **style, markersize=7, elinewidth=1.6, capsize=3)

    def draw(figure: MplFigure) -> None:
        above, below = figure.subplots(2, 1, height_ratios=[4, 3])
        for place, name in enumerate(reversed(names)):
            style = styles.get(name, {"color": "#777777", "marker": "D", "linestyle": ""})
            draw_bars(above, [place], [outcomes[name].accuracy], style)
        above.set_yticks(range(len(names)), [*reversed(names.values())])
        above.set_xlim(0, 1.02)
        above.set_xlabel("accuracy of the minority")
        for shift, (name, style) in zip((0.14, -0.14), styles.items(), strict=True):
            exposures = [outcomes[name].exposure(view) for view in reversed(WHO)]
            draw_bars(below, [place + shift for place in range(len(WHO))], exposures, style)
        below.axvline(0.5, **plot.CHANCE_LINE)
        below.set_yticks(range(len(WHO)), [*reversed(WHO)])
        below.set_ylim(-0.5, len(WHO) - 0.5)
        below.set_xlim(0.42, 1.02)
        below.set_xlabel("attack accuracy on the minority's records")
        for axes in (above, below):
            axes.tick_params(axis="y", length=0)
        keys = [plot.key(names[name], **style) for name, style in styles.items()]
        plot.legend(figure, [*keys, plot.chance_key("chance")])

    exposed = [outcomes[name].exposure("server").value for name in styles]
    accuracy = [100 * outcomes[name].accuracy.value for name in styles]
    title = f"To the server the minority's exposure goes from {exposed[0]:.2f} to {exposed[1]:.2f}, its accuracy from "
    title += f"{accuracy[0]:.0f} to {accuracy[1]:.0f} %"
    caption = "Above: accuracy without a federation, and with one. Below: the attack chosen for each view, on as many "
    caption += "members as non-members. Bars are 95 % intervals."
    return plot.draw_figure("demo", title, caption, title, draw, height=4.6)


def demonstrate(out: Path, seed: int = 0, references: int = 4, changes: Sequence[str] = ()) -> int:
    """Run all commands and print what they found; returns the exit code of the first that fails, or 0.

    Args:
        out: a new directory for runs, audits and the page.
        seed: of every run.
        references: reference federations of each audit.
        changes: KEY=VALUE of every run.
    """
    out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=out / "demo.log", level=logging.WARNING)
    log = []
    for name, (title, arguments) in commands(out, seed, references, changes).items():
        print(f"\n{title}\n$ shoal {shlex.join(arguments)}", flush=True)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = shoal(arguments)
        if code:
            return code
        log.append(f"$ shoal {shlex.join(arguments)}\n{said.getvalue()}")
        print("\n".join(f"  {line.removeprefix('- ')}" for line in shown(name, out, said.getvalue())), flush=True)
    outcomes = {name: Outcome.of(out / name) for name in ("server-alone", "clients-alone", "ifca", "protected")}
    with (out / "ifca" / "clients.csv").open() as rows:
        clients = Counter(row["group"] for row in csv.DictReader(rows))
    page = out / "demo.html"
    said = lines(outcomes, clients, page)
    write_text(out / "figures.csv", pd.DataFrame([{"seed": seed, **figures(outcomes)}]).to_csv(index=False))
    sections = [
        Section("picture", "Before and after", figures=[picture(outcomes)]),
        Section("price", "Gain, price and promise", items=[*said[:2], *said[4:7]]),
        Section("commands", "What was run", code="\n".join(log), folded="Every command and what it said"),
    ]
    lead = [("verdict", " ".join(said[2:4]))]
    write_text(page, render("page.html.j2", "A minority, exposed and protected", lead, (), sections, style="run"))
    print("\n" + "\n".join(f"{number}. {line}" for number, line in enumerate(said, 1)))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a new directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--references", type=int, default=4, help="reference federations of each audit")
    given = parser.parse_args()
    sys.exit(demonstrate(given.out, given.seed, given.references))
