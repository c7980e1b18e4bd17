"""The section on clients that left and joined: when, and what it took to forget them."""

from collections.abc import Mapping

import pandas as pd

from shoal.core.formats import DASH, count, number, percent
from shoal.metrics.summary import Metrics
from shoal.reports.page import Section
from shoal.reports.table import ReportTable, heads, row

METHODS = {
    "continue": "The others went on with the models as they were, which keep what they learnt from the leavers.",
    "exact": "What the leavers trained was trained again without them.",
    "fed-eraser": "FedEraser replayed the updates of those who stayed, corrected by short new trainings.",
    "gradient-ascent": "Gradient ascent by the leavers themselves, from models without their last update.",
}
"""The shipped methods in a sentence."""


def presence_section(metrics: Metrics, presence: pd.DataFrame) -> Section:
    """The section on clients that left or joined.

    Args:
        metrics: of the whole run, by their keys in `summary.json`.
        presence: one row per client of an event, as in presence.csv.
    """
    cells = presence.astype(object).where(presence.notna(), DASH)
    rows = [
        row(str(each["name"]), *(_whole(each[name]) for name in ("first_round", "last_round", "cluster")))
        for each in cells.to_dict("records")
    ]
    table = ReportTable(heads(["client"], ["first round", "last round", "cluster"]), tuple(rows), "Who left and joined")
    methods = [*dict.fromkeys(presence["method"].dropna())]
    paragraphs = [METHODS.get(method, f"The models forgot by '{method}'.") for method in methods]
    if "forgetting.client_rounds" in metrics:
        paragraphs += _cost(metrics)
    return Section("presence", table.title, paragraphs, table=table)


def event_marks(presence: pd.DataFrame | None) -> dict[int, str]:
    """What happens before a round, by its number, such as "2 leave".

    >>> event_marks(pd.DataFrame({"first_round": [1, 4, 1], "last_round": [3, None, 3]}))
    {4: '2 leave, 1 joins'}
    """
    marks: dict[int, list[str]] = {}
    if presence is None:
        return {}
    left, joined = presence["last_round"].dropna() + 1, presence.loc[presence["first_round"] > 1, "first_round"]
    for rounds, one, several in ((left, "leaves", "leave"), (joined, "joins", "join")):
        for place, clients in rounds.value_counts().sort_index().items():
            verb = one if clients == 1 else several
            marks.setdefault(int(str(place).partition(".")[0]), []).append(f"{clients} {verb}")
    return {place: ", ".join(marks[place]) for place in sorted(marks)}


def _cost(metrics: Metrics) -> list[str]:
    """What forgetting took, and what replayed choices still tell."""
    figures: Mapping[str, float] = {
        key.removeprefix("forgetting."): value for key, value in metrics.items() if key.startswith("forgetting.")
    }
    spent, whole = figures["client_rounds"], figures["full_client_rounds"]
    share = f", {percent(spent / whole)} of the {number(whole)} that retraining everything takes" if whole else ""
    changed, models = figures["changed_choices"], int(figures["clusters"])
    sentences = [
        f"Forgetting took {number(spent)} client-rounds{share}, and changed {models} model{'s' * (models != 1)}. "
        f"A server must store {number(figures['megabytes'])} MB for it."
    ]
    if choices := figures["choices"]:
        told = "they are what this method still tells" if changed else "so nothing of the leavers is left in them"
        sentences.append(
            f"{count(changed)} of {count(choices)} replayed choices would be others without the leavers; {told}."
        )
    return sentences


def _whole(value: object) -> str:
    return str(int(value)) if isinstance(value, int | float) and value >= 0 else DASH
