"""The demonstration: who could recognise a minority's records, who does, what protects them, and at what price.

``make demo`` runs it. It calls commands of ``shoal``, which its page lists, and ends with eight lines and that page.
Every line follows from the runs' figures: another seed may have other sentences.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure
from rich.console import Console

from shoal.audit.finding import Estimate, every_attack
from shoal.audit.record_table import AGAINST_CLIENTS, views_within
from shoal.cli.app import main as shoal
from shoal.core.atomic_files import write_text
from shoal.core.formats import join_words
from shoal.data.preferences import View
from shoal.reports import plotting as plot
from shoal.reports.exposure import Headline
from shoal.reports.page import Section, render
from shoal.runs.progress import LiveBar

HERE = Path(os.path.relpath(Path(__file__).parent))
BASE, PROTECTED = HERE / "sideways.toml", HERE / "protected.toml"
SERVER_ALONE = [
    'algorithm.name="server-only"', "algorithm.rounds=1", "local.learning_rate=1.0",
    'model={name="logistic", features={dimension=48}}',
]  # fmt: skip
"""The same features as the protected federation, trained on the server's labelled images."""
CLIENTS_ALONE = ['algorithm.name="local"']
NAMES = {
    "server-alone": "server's data only",
    "clients-alone": "each client alone",
    "ifca": "federated (IFCA)",
    "protected": "protected",
}
WHO: dict[View, str] = {"server": "the server", "client": "another client", "outsider": "an outsider"}


class Outcome(NamedTuple):
    """One federation: its summary.json, and where it was attacked, audit.json and the rows of audit.csv."""

    summary: Mapping[str, Any]
    audit: Mapping[str, Any]
    attacks: pd.DataFrame

    @staticmethod
    def of(run: Path) -> "Outcome":
        """The outcome in a run's directory."""
        audited = (run / "audit.json").exists()
        audit = json.loads((run / "audit.json").read_text()) if audited else {}
        attacks = pd.read_csv(run / "audit.csv", keep_default_na=False, na_values=[""]) if audited else pd.DataFrame()
        return Outcome(json.loads((run / "summary.json").read_text()), audit, attacks)

    @property
    def accuracy(self) -> Estimate:
        """Accuracy on the minority's test examples."""
        return Estimate.of_rate(self.summary["accuracy.minority"], self.summary["test_examples.minority"])

    def chosen(self, view: str) -> Estimate:
        """The finding on the minority's records for a view: by the attack that was chosen beforehand."""
        of_group = (one for one in self.audit["findings"] if (one["view"], one["group"]) == (view, "minority"))
        return next(Estimate(one["accuracy"], one["low"], one["high"]) for one in of_group)

    def exposures(self, view: View) -> list[Estimate]:
        """All attacks of a view on the minority's records, the strongest first; their intervals hold at once."""
        found = [
            one.accuracy
            for one in every_attack(self.attacks, "group")["minority"]
            if one.view in views_within(view) and not one.attack.endswith(AGAINST_CLIENTS) and one.accuracy.known
        ]
        return sorted(found, key=lambda one: -one.value)

    def exposed(self, view: View) -> bool:
        """Whether any attack of a view is certain to recognise records."""
        return any(one.verdict == "exposed" for one in self.exposures(view))


def commands(out: Path, seed: int, references: int, changes: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """The commands of ``shoal`` by name of their output, each under a title."""

    def sets(*changes: str) -> list[str]:
        return [part for change in changes for part in ("--set", change)]

    def run(config: Path, name: str, *more: str) -> list[str]:
        return ["run", str(config), *sets(*more, *common), "--out", str(out / name), "--quiet"]

    def audit(name: str) -> list[str]:
        return ["audit", str(out / name), "--references", str(references), "--quiet"]

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


def lines(outcomes: Mapping[str, Outcome], page: Path) -> list[str]:
    """The eight lines at the end: a table in percent, what stays exposed, and the page.

    Args:
        outcomes: by name of the run.
        page: its path.
    """
    protected = outcomes["protected"]
    rows = [
        [name, outcome.accuracy.value, *(outcome.exposures(view)[0].value for view in WHO if outcome.audit)]
        for name, outcome in zip(NAMES.values(), (outcomes[name] for name in NAMES), strict=True)
    ]
    bounds = [protected.summary[f"bound.{view}.accuracy"] for view in WHO]
    rows.append(["limit on any attack, protected", None, *bounds])
    percents = [[name, *("" if value is None else f"{100 * value:.0f}" for value in values)] for name, *values in rows]
    head = ["minority, in % (50: guessing)", "accuracy", *(f"by {view}" for view in WHO)]
    table = [head, *percents]
    texts = [f"{name:<31}" + "".join(f"{cell:>12}" for cell in cells) for name, *cells in table]
    return [*(text.rstrip() for text in texts), still_exposed(protected), f"Page: {page}"]


def still_exposed(protected: Outcome) -> str:
    """Who recognises the minority's records in the protected federation, and what would stop the server."""
    who = [WHO[view] + " (until sums are secure)" * (view == "server") for view in WHO if protected.exposed(view)]
    return f"Protected, still exposed to {join_words(who)}." if who else "Protected: exposure is not shown to anybody."


def price(outcomes: Mapping[str, Outcome]) -> str:
    """What the protection costs the minority, and what remains of its gain, with 95 % intervals."""
    ifca, protected = outcomes["ifca"].accuracy, outcomes["protected"].accuracy
    better = max((outcomes[name].accuracy for name in ("server-alone", "clients-alone")), key=lambda one: one.value)
    changes = map(protected.minus, (ifca, better))
    cost, gain = (f"{one.value:+.2f} ({one.low:+.2f} to {one.high:+.2f})" for one in changes)
    return f"The minority's accuracy changes by {cost}. Against the better of server and clients alone it is {gain}."


def figures(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """The figures behind the lines, by name of the run."""
    row: dict[str, float] = {}
    for name, outcome in outcomes.items():
        row |= {f"{name} accuracy {of}": outcome.summary[f"accuracy.{of}"] for of in ("overall", "minority")}
        for view in WHO if outcome.audit else ():
            one = outcome.chosen(view)
            row |= {
                f"{name} {view}{end}": value for end, value in (("", one.value), (" low", one.low), (" high", one.high))
            }
    return row | {f"epsilon {view}": outcomes["protected"].summary[f"epsilon.{view}"] for view in WHO}


def picture(outcomes: Mapping[str, Outcome]) -> plot.Figure:
    """Accuracy of the minority above its exposure to each view, as it is and protected."""
    styles = {name: plot.group_style(g).mark for g, name in enumerate(("ifca", "protected"))}

    def draw_bars(axes: Axes, y: Sequence[float], estimates: Sequence[Estimate], style: Mapping[str, Any]) -> None:
        value, low, high = np.array([(e.value, e.low, e.high) for e in estimates]).T
        axes.errorbar(value, y, xerr=[value - low, high - value], **style, markersize=7, elinewidth=1.6, capsize=3)

    def draw(figure: MplFigure) -> None:
        above, below = figure.subplots(2, 1, height_ratios=[4, 3])
        for place, name in enumerate(reversed(NAMES)):
            style = styles.get(name, {"color": "#777777", "marker": "D", "linestyle": ""})
            draw_bars(above, [place], [outcomes[name].accuracy], style)
        above.set_yticks(range(len(NAMES)), [*reversed(NAMES.values())])
        above.set_xlim(0, 1.02)
        above.set_xlabel("accuracy of the minority")
        for shift, (name, style) in zip((0.14, -0.14), styles.items(), strict=True):
            exposures = [outcomes[name].exposures(view)[0] for view in reversed(WHO)]
            draw_bars(below, [place + shift for place in range(len(WHO))], exposures, style)
        below.axvline(0.5, **plot.CHANCE_LINE)
        below.set_yticks(range(len(WHO)), [*reversed(WHO)])
        below.set_ylim(-0.5, len(WHO) - 0.5)
        below.set_xlim(0.42, 1.02)
        below.set_xlabel("attack accuracy on the minority's records")
        for axes in (above, below):
            axes.tick_params(axis="y", length=0)
        keys = [plot.key(NAMES[name], **style) for name, style in styles.items()]
        plot.legend(figure, [*keys, plot.chance_key("chance")])

    exposed = [outcomes[name].exposures("server")[0].value for name in styles]
    accuracy = [outcomes[name].accuracy.value for name in styles]
    title = f"To the server the minority's exposure goes from {exposed[0]:.2f} to {exposed[1]:.2f}, its accuracy from "
    title += f"{accuracy[0]:.2f} to {accuracy[1]:.2f}"
    caption = (
        "Above: accuracy without a federation, and with one. Below: the strongest attack of each view, on as many "
    )
    caption += "members as non-members. Bars are 95 % intervals, which all attacks keep at once."
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
    log, steps = [], commands(out, seed, references, changes)
    with LiveBar(Console(stderr=True), "step") as bar:
        bar.begin("step", 0, len(steps))
        for done, (title, arguments) in enumerate(steps.values(), 1):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                code = shoal(arguments)
            if code:
                return code
            log.append(f"$ shoal {shlex.join(arguments)}\n{said.getvalue()}")
            bar.show(done, len(steps), title)
    outcomes = {name: Outcome.of(out / name) for name in NAMES}
    page = out / "demo.html"
    said = lines(outcomes, page)
    write_text(out / "figures.csv", pd.DataFrame([{"seed": seed, **figures(outcomes)}]).to_csv(index=False))
    sections = [
        Section("picture", "Before and after", figures=[picture(outcomes)]),
        Section("figures", "In percent; 50 is guessing", code="\n".join(said[:6])),
        Section("commands", "What was run", code="\n".join(log), folded="every command and its output"),
    ]
    text = price(outcomes)
    answers = [Headline("Who is exposed, to whom?", said[6]), Headline("What does the protection cost?", text)]
    title = "A minority, exposed and protected"
    write_text(page, render("page.html.j2", title, (), (), sections, style="run", answers=answers))
    print("\n".join(said))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a new directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--references", type=int, default=4, help="reference federations of each audit")
    given = parser.parse_args()
    sys.exit(demonstrate(given.out, given.seed, given.references))
