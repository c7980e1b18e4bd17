"""The page of the audit of a client that left: the answer, attacks by view, and those who stay."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.formats import number, percent
from shoal.metrics.intervals import Estimate
from shoal.reports.page import Section, render
from shoal.reports.table import Cell, ReportTable, heads, row

_PHRASES = {
    "recognisable": "still recognisable",
    "indistinguishable": "indistinguishable from federations that never had it",
}

_VIEWS = {"outsider": "an outsider", "client": "a client that sees all later models"}

_LIMITS = (
    "The server received the client's updates, and no method takes these back.",
    "Preparations that used the client's rows, such as a table's means, are the same in both kinds of federation.",
)


def answers(flat: Mapping[str, Any]) -> list[str]:
    """The verdicts in sentences, from the keys of audit.json."""
    client, found = f"client '{flat['leaver.client']}'", list[str]()
    for view, who in _VIEWS.items():
        phrase, figure = _PHRASES.get(flat[f"views.{view}.leaver.verdict"]), _figure(flat, view)
        undecided = f"Not decided for {who}: {figure}; more --references narrow it."
        found.append(f"To {who}, {client} is {phrase}: {figure}." if phrase else undecided)
    control = Estimate.of(flat, "control.outsider.held_out_auc")
    if control.low > 0.5 or control.high < 0.5:
        found.append(
            f"Its held-out examples differ too (AUC {control.figure}), so part of this is not memory of single records."
        )
    if "views.pair.leaver.verdict" in flat:
        exposed, figure = flat["views.pair.leaver.verdict"] == "recognisable", _figure(flat, "pair")
        can = "can tell its records" if exposed else "was not shown to tell its records"
        found.append(f"Whoever kept the models of round {flat['leaver.round'] - 1} {can}: {figure}.")
    spent, whole = flat.get("leaver.client_rounds"), flat.get("leaver.full_client_rounds")
    if spent and whole:
        share = f"{percent(spent / whole)} of retraining everything"
        found.append(f"Forgetting by '{flat['leaver.method']}' took {number(spent)} client-rounds, {share}.")
    return found


def _figure(flat: Mapping[str, Any], view: str) -> str:
    key = f"views.{view}.leaver"
    return f"AUC {Estimate.of(flat, f'{key}.auc').figure} by '{flat[f'{key}.attack']}'"


def leaver_page(flat: Mapping[str, Any], notes: Sequence[str] = ()) -> str:
    """The page; ``flat`` has the keys of audit.json, ``notes`` are sentences on gates and records."""
    verdict, *further = answers(flat)
    lead = [("verdict", verdict), *(("", sentence) for sentence in further), *(("warning", note) for note in notes)]
    names = dict.fromkeys(key.rpartition(".leaver.")[0] for key in flat if key.startswith("attacks."))
    figures = {name.removeprefix("attacks."): f"{name}.leaver.auc" for name in names}
    figures |= {"the client as a whole": "client-membership.outsider.auc", "held-out": "control.outsider.held_out_auc"}
    rows = [row(name, Estimate.of(flat, key).text, Estimate.of(flat, key).interval) for name, key in figures.items()]
    p, kinds = number(flat["leaver.p"]), f"{flat['references']} federations with the client and as many without it."
    note = (
        f"{kinds} An AUC of 0.5 is chance. The run itself among those without it: p = {p}. Names that end in '-client' "
        "are of a client; 'drop' and those in '-pair' of whoever kept the earlier models. Held-out: the client's kind "
        "of data, which nobody trained on. In the verdicts a view's intervals hold at once, so they are wider."
    )
    worst = ()
    if "worst.record" in flat:
        ends = number(flat["worst.exposure"]), number(flat["worst.exposure.low"])
        worst = (f"Most exposed: {flat['worst.record']}, attack accuracy {ends[0]}, at least {ends[1]} (95 %).",)
    stay = list[Any]()
    for key in (key.removesuffix(".before") for key in flat if key.endswith(".accuracy.before")):
        change = Estimate.of(flat, f"{key}.difference")
        ends = [number(flat[f"{key}.{when}"]) for when in ("before", "after")]
        stay.append(row(key.split(".")[1], *ends, Cell(f"{change.value:+.3f}", change.interval)))
    sections = (
        Section(
            "attacks", "Attacks", worst, table=ReportTable(heads(["attack"], ["AUC", "95 %"]), tuple(rows), note=note)
        ),
        Section("others", "Accuracy of those who stay", table=ReportTable(_STAY, tuple(stay))) if stay else None,
        Section("limits", "What this does not show", items=_LIMITS),
    )
    title = f"Client '{flat['leaver.client']}' left before round {flat['leaver.round']}: is it forgotten?"
    return render("page.html.j2", title, lead, (), sections, style="run")


_STAY = heads(["group"], ["before", "after", "difference"])
