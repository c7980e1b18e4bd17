"""The page of the audit of a client that left."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.audit.finding import Finding
from shoal.core.formats import decimal, number
from shoal.metrics.intervals import Estimate
from shoal.reports import plotting as plot
from shoal.reports.audit.audit_charts import by_view
from shoal.reports.exposure import Headline
from shoal.reports.page import Section, render
from shoal.reports.table import Cell, ReportTable, heads, row

_PHRASES = {
    "recognisable": "still recognisable",
    "indistinguishable": "indistinguishable from federations that never had it",
}

_ABILITIES = {
    "recognisable": "Recognised: {0} can {1} ({2}).",
    "indistinguishable": "Not recognised: {0} cannot {1} by these attacks ({2}).",
    "not decided": "Not decided: whether {0} can {1} ({2}).",
}

_VIEWS = {
    "before": "outsider, before it left",
    "outsider": "outsider",
    "client": "client that sees all later models",
    "pair": "kept the old models",
}
"""The views in words, in the order of the figure."""

_TITLES = {
    "score": "plain confidence", "rmia": "RMIA", "lira": "LiRA", "drop": "lost confidence", "span": "span attack",
    "joint": "joint attack",
}  # fmt: skip
"""The attacks in words, by their keys without the view."""

_LIMITS = (
    "The server received the client's updates, and no method takes these back.",
    "Preparations that used the client's rows, such as a table's means, are the same in both kinds of federation.",
    "The models before are those of the last round with the client, the models after those of the last round of all: "
    "the rounds in between change accuracy and exposure too.",
)

_RETRAINED = {
    "clusters": "'exact' retrained single models, since a model depends on its own clients alone.",
    "federation": "'exact' retrained the whole federation, since a model depends on more than its own clients.",
}


def headlines(flat: Mapping[str, Any]) -> list[Headline]:
    """Create the page's questions and answers from the values of audit.json."""
    client = f"client '{flat['leaver.client']}'"
    forgotten, earlier, cost, staying = list[str](), list[str](), list[str](), list[str]()
    for view in ("outsider", "client"):
        more = f"; --references {4 * flat['references']} would narrow the interval"
        undecided = flat[f"views.{view}.leaver.verdict"] == "not decided"
        forgotten.append(f"{_verdict(flat, view)}{more * undecided}.")
    control = Estimate.of(flat, "control.outsider.held_out_auc")
    if control.low > 0.5 or control.high < 0.5:
        forgotten.append(
            f"The client's held-out examples differ too (AUC {control.figure}): part of this is not memory of records."
        )
    kept = f"somebody who kept the models of round {flat['leaver.round'] - 1}"
    before = "an outsider before the departure"
    for view, who, what in (("pair", kept, "tell its records"), ("before", before, "tell that it took part")):
        if f"views.{view}.leaver.verdict" in flat:
            earlier.append(_ABILITIES[flat[f"views.{view}.leaver.verdict"]].format(who, what, _figure(flat, view)))
    spent, whole = flat.get("leaver.client_rounds"), flat.get("leaver.full_client_rounds")
    if spent and whole:
        fraction = f"{decimal(spent / whole)} of retraining everything"
        cost.append(f"Forgetting by '{flat['leaver.method']}' took {number(spent)} client-rounds, {fraction}.")
    cost += [_RETRAINED[flat["leaver.retrained"]]] if spent and "leaver.retrained" in flat else []
    group = next((key.split(".")[1] for key in flat if key.endswith(".exposure.difference")), None)
    if group is not None:
        change = Estimate.of(flat, f"others.{group}.exposure.difference")
        verdict = "higher than before" if change.low > 0 else "lower than before" if change.high < 0 else "not decided"
        ends = " to ".join(f"{end:+.3f}" for end in change[1:])
        staying.append(f"Exposure of those who stay in group '{group}': {verdict} ({change.value:+.3f}, {ends}).")
    questions = {
        f"Is {client} forgotten?": forgotten,
        "What do earlier models tell?": earlier,
        "What did forgetting cost?": cost,
        "Are the others more exposed?": staying,
    }
    return [Headline(question, " ".join(said)) for question, said in questions.items() if said]


def _verdict(flat: Mapping[str, Any], view: str) -> str:
    """Whether a view recognises the client, with the figure."""
    phrase, figure = _PHRASES.get(flat[f"views.{view}.leaver.verdict"]), _figure(flat, view)
    who = f"{'an' if view == 'outsider' else 'a'} {_VIEWS[view]}"
    if not phrase:
        return f"Not decided for {who}: {figure}"
    return f"To {who}, client '{flat['leaver.client']}' is {phrase}: {figure}"


def _figure(flat: Mapping[str, Any], view: str) -> str:
    key = f"views.{view}.leaver"
    return f"AUC {Estimate.of(flat, f'{key}.auc').figure} by {_title(flat[f'{key}.attack'], view)}"


def _title(name: str, view: str) -> str:
    """The name of an attack in a view in words."""
    key = name.removesuffix(f"-{view}")
    return _TITLES.get(key, key)


def _attacks(flat: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The view and the key of each attack, by its name."""
    names = dict.fromkeys(key.split(".")[1] for key in flat if key.startswith("attacks."))
    views = {name: "pair" if name == "drop" else name.rpartition("-")[2] for name in names}
    return {
        name: (view if view in _VIEWS else "outsider", f"attacks.{name}.leaver.auc") for name, view in views.items()
    }


def _by_view(flat: Mapping[str, Any], title: str) -> Sequence[plot.Figure]:
    """The AUC of each attack, by view."""
    attacks = _attacks(flat)
    asked = Counter(view for view, _ in attacks.values())
    found = [
        Finding(
            _VIEWS[view], _title(name, view), name, Estimate.of(flat, key).among(asked[view]), title=_title(name, view)
        )
        for name, (view, key) in attacks.items()
    ]
    drawn = by_view(found, tuple(_VIEWS[view] for view in _VIEWS if view in asked), "AUC")
    caption = "Lines: 95 % intervals that all attacks of a view keep at once. An attacker reverses an AUC below 0.5."
    return () if drawn is None else (replace(drawn, title=title, caption=caption),)


def leaver_page(flat: Mapping[str, Any], notes: Sequence[str] = ()) -> str:
    """Render the page."""
    lead = [("warning", note) for note in notes]
    figures = {(_title(name, view), _VIEWS[view]): key for name, (view, key) in _attacks(flat).items()}
    figures["the client as a whole", _VIEWS["outsider"]] = "client-membership.outsider.auc"
    figures["held-out examples", _VIEWS["outsider"]] = "control.outsider.held_out_auc"
    rows = [row(*names, Estimate.of(flat, key).text, Estimate.of(flat, key).interval) for names, key in figures.items()]
    p, kinds = number(flat["leaver.p"]), f"{flat['references']} federations with the client and as many without it."
    note = (
        f"{kinds} An AUC of 0.5 is chance. The run itself among those without it: p = {p}. Held-out: the client's kind "
        "of data, which nobody trained on. In the verdicts a view's intervals hold at once, so they are wider."
    )
    worst = ()
    if "worst.record" in flat:
        ends = decimal(flat["worst.exposure"]), decimal(flat["worst.exposure.low"])
        worst = (f"Most exposed: {flat['worst.record']}, attack accuracy {ends[0]}, at least {ends[1]} (95 %).",)
    stay = list[Any]()
    for key in (key.removesuffix(".before") for key in flat if key.startswith("others.") and key.endswith(".before")):
        change = Estimate.of(flat, f"{key}.difference")
        ends = [decimal(flat[f"{key}.{when}"]) for when in ("before", "after")]
        stay.append(row(*key.split(".")[1:3], *ends, Cell(f"{change.value:+.3f}", change.interval)))
    sections = (
        Section("views", "What each view tells", figures=_by_view(flat, _verdict(flat, "outsider"))),
        Section(
            "attacks", "Attacks", worst,
            table=ReportTable(heads(["attack", "view"], ["AUC", "95 %"]), tuple(rows), note=note),
        ),
        Section("others", "Those who stay", table=ReportTable(_STAY, tuple(stay))) if stay else None,
        Section("limits", "What this does not show", items=_LIMITS),
    )  # fmt: skip
    title = f"Client '{flat['leaver.client']}' left before round {flat['leaver.round']}"
    return render("page.html.j2", title, lead, (), sections, style="run", answers=headlines(flat))


_STAY = heads(["group", "figure"], ["before", "after", "difference"])
