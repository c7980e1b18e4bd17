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
    "indistinguishable": "indistinguishable from federations without the client",
}

_ABILITIES = {
    "recognisable": "Recognised: {0} can {1} ({2}).",
    "indistinguishable": "Not recognised: by these attacks, {0} cannot {1} ({2}).",
    "not decided": "Not decided: whether {0} can {1} ({2}).",
}

_VIEWS = {
    "before": "outsider, before the departure",
    "outsider": "outsider",
    "client": "client that sees all later models",
    "pair": "kept the old models",
}
"""Names of the views, in the order of the figure."""

_TITLES = {
    "score": "plain confidence", "rmia": "RMIA", "lira": "LiRA", "drop": "lost confidence", "span": "span attack",
    "joint": "joint attack",
}  # fmt: skip
"""Names of the attacks, by key without the view."""

_LIMITS = (
    "The server received the client's updates, and no method takes these back.",
    "Preprocessing that used the client's rows, such as a table's means, is the same with and without the client.",
    "The models before are from the last round with the client, and the models after from the final round: the rounds "
    "in between also change accuracy and exposure.",
)

_RETRAINED = {
    "clusters": "'exact' retrained single models, since each model depends only on its own clients.",
    "federation": "'exact' retrained the whole federation, since each model also depends on other clients.",
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
            f"The client's held-out examples differ too (AUC {control.figure}), so memory explains only a part."
        )
    kept = f"an attacker with the models of round {flat['leaver.round'] - 1}"
    before = "an outsider before the departure"
    for view, who, what in (("pair", kept, "recognise records"), ("before", before, "recognise the client")):
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
        staying.append(f"Exposure of remaining clients in group '{group}': {verdict} ({change.value:+.3f}, {ends}).")
    questions = {
        f"Is {client} forgotten?": forgotten,
        "What do earlier models reveal?": earlier,
        "What did forgetting cost?": cost,
        "Are the remaining clients more exposed?": staying,
    }
    return [Headline(question, " ".join(said)) for question, said in questions.items() if said]


def _verdict(flat: Mapping[str, Any], view: str) -> str:
    """Describe whether a view recognises the client."""
    phrase, figure = _PHRASES.get(flat[f"views.{view}.leaver.verdict"]), _figure(flat, view)
    who = f"{'an' if view == 'outsider' else 'a'} {_VIEWS[view]}"
    if not phrase:
        return f"Not decided for {who}: {figure}"
    return f"To {who}, client '{flat['leaver.client']}' is {phrase}: {figure}"


def _figure(flat: Mapping[str, Any], view: str) -> str:
    key = f"views.{view}.leaver"
    return f"AUC {Estimate.of(flat, f'{key}.auc').figure} by {_title(flat[f'{key}.attack'], view)}"


def _title(name: str, view: str) -> str:
    """Return the name of an attack."""
    key = name.removesuffix(f"-{view}")
    return _TITLES.get(key, key)


def _attacks(flat: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the view and the key of each attack, by the attack's name."""
    names = dict.fromkeys(key.split(".")[1] for key in flat if key.startswith("attacks."))
    views = {name: "pair" if name == "drop" else name.rpartition("-")[2] for name in names}
    return {
        name: (view if view in _VIEWS else "outsider", f"attacks.{name}.leaver.auc") for name, view in views.items()
    }


def _by_view(flat: Mapping[str, Any], title: str) -> Sequence[plot.Figure]:
    """Draw the AUC of each attack, by view."""
    attacks = _attacks(flat)
    asked = Counter(view for view, _ in attacks.values())
    found = [
        Finding(
            _VIEWS[view], _title(name, view), name, Estimate.of(flat, key).among(asked[view]), title=_title(name, view)
        )
        for name, (view, key) in attacks.items()
    ]
    drawn = by_view(found, tuple(_VIEWS[view] for view in _VIEWS if view in asked), "AUC")
    caption = "Lines: 95 % intervals, simultaneous within a view. An attacker can reverse an AUC below 0.5."
    return () if drawn is None else (replace(drawn, title=title, caption=caption),)


def leaver_page(flat: Mapping[str, Any], notes: Sequence[str] = ()) -> str:
    """Render the page from the values of audit.json."""
    lead = [("warning", note) for note in notes]
    figures = {(_title(name, view), _VIEWS[view]): key for name, (view, key) in _attacks(flat).items()}
    figures["the client as a whole", _VIEWS["outsider"]] = "client-membership.outsider.auc"
    figures["held-out examples", _VIEWS["outsider"]] = "control.outsider.held_out_auc"
    rows = [row(*names, Estimate.of(flat, key).text, Estimate.of(flat, key).interval) for names, key in figures.items()]
    p, kinds = (
        number(flat["leaver.p"]),
        f"{flat['references']} federations with the client, and as many without.",
    )
    note = (
        f"{kinds} An AUC of 0.5 is chance. The run's rank among federations without the client: p = {p}. Held-out: "
        "examples of the client that no client trained on. Verdicts use wider intervals, simultaneous within a view."
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
        Section("views", "What each view reveals", figures=_by_view(flat, _verdict(flat, "outsider"))),
        Section(
            "attacks", "Attacks", worst,
            table=ReportTable(heads(["attack", "view"], ["AUC", "95 %"]), tuple(rows), note=note),
        ),
        Section("others", "Remaining clients", table=ReportTable(_STAY, tuple(stay))) if stay else None,
        Section("limits", "What this does not show", items=_LIMITS),
    )  # fmt: skip
    title = f"Client '{flat['leaver.client']}' left before round {flat['leaver.round']}"
    return render("page.html.j2", title, lead, (), sections, style="run", answers=headlines(flat))


_STAY = heads(["group", "figure"], ["before", "after", "difference"])
