"""The page of a privacy card, with findings of attacks, guarantees, exclusions and the described models."""

from collections.abc import Mapping
from math import nan
from typing import Any

from shoal.audit.finding import Estimate, Finding, attack_title, exposure_summary
from shoal.core.formats import DASH, count, number
from shoal.metrics.intervals import AT_CHANCE
from shoal.reports.exposure import limit_sentence
from shoal.reports.page import Section, render
from shoal.reports.table import Cell, ReportTable, TableRow, heads, row

_EXPOSURE = heads(["records and attacker", "outcome"], ["attack accuracy", "members"])


def card_page(card: Mapping[str, Any]) -> str:
    """Render the page of a privacy card from the result of `shoal.runs.audits.card.privacy_card`."""
    sections = (_exposure(card["exposure"]), _questions(card), _run(card))
    lead = [("verdict", f"{_found(card['exposure'])} {_promised(card['promise'], card['exposure'])}")]
    return render("page.html.j2", f"Privacy card: {card['run']['title']}", lead, (), sections, style="run")


def _found(exposure: Mapping[str, Any]) -> str:
    """Name the exposed groups and their attackers in a sentence."""
    if not exposure["asked"]:
        return "The exposure of these models was not measured."
    of_views = exposure["views"].items()
    return exposure_summary(
        [Finding(view, name, of["attack"], _accuracy(of)) for view, names in of_views for name, of in names.items()]
    )


def _accuracy(found: Mapping[str, Any]) -> Estimate:
    return Estimate(*(found.get(key, nan) for key in ("accuracy", "low", "high")))


def _promised(promise: Mapping[str, Any] | None, exposure: Mapping[str, Any]) -> str:
    if promise is None:
        return "No guarantee covers further attacks."
    of = epsilon_by_view(promise)
    said = [f"Promised against every attack on {promise['unit']}: epsilon {of} at delta {promise['delta']:g}."]
    for view, bound in promise["bound"].items():
        found = [figures.get("accuracy", nan) for figures in exposure.get("views", {}).get(view, {}).values()]
        said.append(f"{limit_sentence(view, {f'bound.{view}.{name}': value for name, value in bound.items()}, found)}.")
    return " ".join(said)


def epsilon_by_view(promise: Mapping[str, Any]) -> str:
    """Describe a guarantee's epsilon per view in words."""
    return ", ".join(f"{epsilon:.2f} towards {view}" for view, epsilon in promise["epsilon"].items())


def _exposure(exposure: Mapping[str, Any]) -> Section:
    title = "What attacks found"
    if not exposure["asked"]:
        return Section("exposure", title, ["Measure it:"], code=exposure["command"])
    rows: list[TableRow] = []
    for view, by_name in exposure["views"].items():
        rows += [_line(view, name, found) for name, found in by_name.items()]
        rows += [] if by_name else [row(f"all, to {view}", Cell("not asked", exposure["command"]), DASH, DASH)]
    rows += [
        _line("whoever sees most", f"members of model {name}", found) for name, found in exposure["models"].items()
    ]
    power = (
        f"{count(exposure['references'])} reference federations, {count(exposure['members'])} members and "
        f"{count(exposure['non_members'])} non-members. Attack accuracy is balanced; chance is 0.5. The 95 % intervals "
        f"of all groups and views hold at once. Exposed: the interval is above 0.5. At chance: the interval covers 0.5 "
        f"and ends at {AT_CHANCE} or below. Not decided: the interval covers 0.5 and values above {AT_CHANCE}."
    )
    return Section("exposure", title, table=ReportTable(_EXPOSURE, tuple(rows), note=power))


def _line(view: str, name: str, found: Mapping[str, Any]) -> TableRow:
    accuracy = Cell(_accuracy(found).text, _accuracy(found).interval)
    records = Cell(count(found["members"]), f"{count(found['non_members'])} non-members")
    style = "over" if found["outcome"] == "exposed" else ""
    outcome = Cell(found["outcome"], f"by {attack_title(found['attack'])}")
    return row(f"{name}, to {view}", outcome, accuracy, records, style=style)


_SOURCE = (
    "The questions follow the differential privacy pyramid of NIST SP 800-226 (March 2025). Shoal adds questions on "
    "the choice of a model, hyper-parameters, the lower bound, attacks and properties."
)


def _questions(card: Mapping[str, Any]) -> Section:
    missing = sum(not question["covered"] for question in card["questions"])
    rows = (
        row(question["question"], question["answer"], style="" if question["covered"] else "over")
        for question in card["questions"]
    )
    table = ReportTable(heads(["question", "answer"]), tuple(rows), note=_SOURCE)
    return Section("questions", f"{missing} of {len(card['questions'])} questions are not covered", table=table)


def _run(card: Mapping[str, Any]) -> Section:
    run = card["run"]
    clients = ", ".join(f"{clients} of {name}" for name, clients in run["clients"].items())
    said = {name: run[name] for name in ("algorithm", "dataset", "seed", "rounds", "training_examples")}
    said |= {"clients": clients} | {f"{run['metric']}, {name}": value for name, value in run["accuracy"].items()}
    said |= {f"SHA-256, {name}": value for name, value in run["sha256"].items()} | {"shoal": card["shoal"]}
    return Section("run", "The models", table=_pairs("setting", said))


def _pairs(head: str, said: Mapping[str, Any]) -> ReportTable:
    """Create a table of names and values."""
    rows = (row(name.replace("_", " "), _text(value)) for name, value in said.items() if value is not None)
    return ReportTable(heads([head, "value"]), tuple(rows))


def _text(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)
