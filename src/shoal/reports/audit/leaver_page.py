"""The page of the audit of a client that left: the answer, federations with and without it, attacks, and the others."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as MplFigure

from shoal.core.formats import number, percent
from shoal.metrics.intervals import Estimate
from shoal.reports.page import Section, render
from shoal.reports.plotting import OVER, WITHIN, draw_figure
from shoal.reports.table import Cell, ReportTable, heads, row

_PHRASES = {
    "recognisable": "still recognisable",
    "erased": "recognisable as erased, since its records are less probable than without it",
    "indistinguishable": "indistinguishable from federations that never had it",
}

_VIEWS = {"outsider": "an outsider", "client": "a client that sees all later models"}

LIMITS = (
    "The server received the client's updates, and no method takes these back.",
    "Preparations that used the client's rows, such as a table's means, are the same in both kinds of federation, so "
    "they are not tested.",
    "The pair compares the client's training examples with held-out ones; the other views compare federations.",
)


def answers(flat: Mapping[str, Any]) -> list[str]:
    """The verdicts in sentences, from the keys of audit.json."""
    client, method = flat["leaver.client"], flat["leaver.method"]
    found = list[str]()
    for view, who in _VIEWS.items():
        phrase, figure = _PHRASES.get(flat[f"views.{view}.leaver.verdict"]), _figure(flat, view)
        undecided = f"Not decided for {who}: {figure}; more --references narrow it."
        found.append(f"To {who}, client '{client}' is {phrase}: {figure}." if phrase else undecided)
    if "views.pair.leaver.verdict" in flat:
        exposed, figure = flat["views.pair.leaver.verdict"] == "recognisable", _figure(flat, "pair")
        can = "can still tell its records" if exposed else "was not shown to tell its records"
        found.append(f"Whoever kept the models of round {flat['leaver.round'] - 1} {can}: {figure}.")
    spent, whole = flat.get("leaver.client_rounds"), flat.get("leaver.full_client_rounds")
    if spent and whole:
        found.append(
            f"Forgetting by '{method}' took {number(spent)} client-rounds, {percent(spent / whole)} of retraining "
            "everything."
        )
    return found


def _figure(flat: Mapping[str, Any], view: str) -> str:
    key = f"views.{view}.leaver"
    return f"AUC {Estimate.of(flat, f'{key}.auc').figure} by '{flat[f'{key}.attack']}'"


def leaver_page(
    flat: Mapping[str, Any],
    means: Sequence[float],
    *,
    gates: Sequence[tuple[str, bool]] = (),
    notes: Sequence[str] = (),
) -> str:
    """The page.

    Args:
        flat: the keys of audit.json.
        means: mean confidence on the client's records of the run, then of the federations, those with the client at odd
            places.
        gates: sentences, and whether each holds.
        notes: what must be known of the records, without a full stop.
    """
    sentences = answers(flat)
    lead = [("verdict", sentences[0]), *(("", sentence) for sentence in sentences[1:])]
    lead += [("" if holds else "warning", sentence) for sentence, holds in gates]
    lead += [("warning", f"{note}.") for note in notes]
    rows = [
        row(name.split(".")[1], *(Cell(cell) for cell in _cells(flat, f"{name}.leaver.auc")))
        for name in dict.fromkeys(key.rpartition(".leaver.")[0] for key in flat if key.startswith("attacks."))
    ]
    controls = {"the client as a whole": "client-membership.outsider.auc", "held-out": "control.outsider.held_out_auc"}
    rows += [row(f"{name}, outsider", *_cells(flat, key)) for name, key in controls.items()]
    note = (
        f"{flat['references']} federations of each kind. An AUC of 0.5 is chance. Names that end in '-client' are of a "
        "client; 'drop' and 'span-pair' are of whoever kept the earlier models. Held-out: the client's examples that "
        "nobody trained on; above 0.5, models know its kind of data. In the verdicts intervals of a view's attacks "
        "hold at once, so they are wider."
    )
    groups = [key.split(".")[1] for key in flat if key.startswith("others.") and key.endswith(".before")]
    stay = [
        row(
            group,
            *(number(flat[f"others.{group}.accuracy.{when}"]) for when in ("before", "after")),
            _cell(flat, group),
        )
        for group in groups
    ]
    worst = ()
    if "worst.record" in flat:
        exposure, low = number(flat["worst.exposure"]), number(flat["worst.exposure.low"])
        worst = (f"The most exposed record is {flat['worst.record']}: exposure {exposure}, certainly above {low}.",)
    kinds = ReportTable(heads(["attack"], ["AUC", "95 % interval"]), tuple(rows), note=note)
    table = ReportTable(heads(["group"], ["before", "after", "difference"]), tuple(stay))
    sections = (
        Section("federations", "Federations with and without the client", figures=[_drawn(flat, means)]),
        Section("attacks", "What each attack finds", worst, table=kinds),
        Section("others", "Accuracy of those who stay", table=table) if stay else None,
        Section("limits", "What this does not show", items=LIMITS, folded="limits"),
    )
    title = f"Client '{flat['leaver.client']}' left before round {flat['leaver.round']}: is it forgotten?"
    return render("page.html.j2", title, lead, (), sections, style="run")


def _cells(flat: Mapping[str, Any], key: str) -> tuple[str, str]:
    estimate = Estimate.of(flat, key)
    return estimate.text, estimate.interval


def _cell(flat: Mapping[str, Any], group: str) -> Cell:
    estimate = Estimate.of(flat, f"others.{group}.accuracy.difference")
    return Cell(f"{estimate.value:+.3f}", estimate.interval)


def _drawn(flat: Mapping[str, Any], means: Sequence[float]) -> Any:  # noqa: ANN401
    run, had, never = means[0], means[1::2], means[2::2]
    rank = round(flat["leaver.p"] * (len(never) + 1)) - 1

    def draw(figure: MplFigure) -> None:
        axes = figure.subplots()
        lines = {"never had it": (never, WITHIN), "had it": (had, OVER), "the run": ([run], "black")}
        for place, (values, color) in enumerate(lines.values()):
            axes.plot(values, np.full(len(values), place), "o", color=color, markerfacecolor="white")
        axes.set_yticks(range(len(lines)), list(lines))
        axes.set_ylim(-0.5, len(lines) - 0.5)
        axes.set_xlabel("mean confidence (logit) on the client's training examples")

    title = f"{rank} of {len(never)} federations that never had the client are as confident on its records as the run"
    caption = "One point per federation: the final model that is most confident on the client's records."
    alt = f"Mean confidence of {len(had)} federations with the client, {len(never)} without it, and the run"
    return draw_figure("federations", title, caption, alt, draw, height=2.2)
