"""The section about clients that left or joined in a run's page."""

import pandas as pd

from shoal.core.formats import DASH, count, number, percent
from shoal.metrics.summary import Metrics
from shoal.reports.page import Section
from shoal.reports.table import ReportTable, heads, row


def presence_section(metrics: Metrics, presence: pd.DataFrame) -> Section:
    """Create the section about clients that left or joined."""
    columns = ["first_round", "last_round", "cluster"]
    numbers = presence[columns].astype(float)
    texts = [[DASH if not value >= 0 else f"{value:.0f}" for value in values] for values in numbers.to_numpy()]
    methods = presence["method"].fillna(DASH)
    rows = [
        row(str(name), str(method), *cells)
        for name, method, cells in zip(presence["name"], methods, texts, strict=True)
    ]
    table = ReportTable(heads(["client", "method"], [name.replace("_", " ") for name in columns]), tuple(rows))
    cost = _cost(metrics) if "forgetting.client_rounds" in metrics else []
    return Section("presence", "Who left and joined", cost, table=table)


def event_marks(presence: pd.DataFrame | None) -> dict[int, str]:
    """Return labels of joining and leaving, such as "2 leave", by the first round after the event.

    >>> event_marks(pd.DataFrame({"first_round": [1, 4, 1], "last_round": [3, None, 3]}))
    {4: '2 leave, 1 joins'}
    """
    if presence is None:
        return {}
    left, joined = (presence["last_round"].dropna() + 1).astype(int), presence["first_round"]
    events = [(left, "leave"), (joined[joined > 1], "join")]
    counts = {(int(place), verb): int(n) for rounds, verb in events for place, n in rounds.value_counts().items()}  # pyright: ignore[reportArgumentType]
    marks: dict[int, str] = {}
    for (place, verb), n in sorted(counts.items(), key=lambda item: item[0][0]):
        marks[place] = ", ".join(filter(None, [marks.get(place), f"{n} {verb}{'s' if n == 1 else ''}"]))
    return marks


def _cost(metrics: Metrics) -> list[str]:
    """Describe the cost of forgetting, and how many choices depended on the leavers."""
    names = ("client_rounds", "full_client_rounds", "clusters", "choices", "changed_choices", "megabytes")
    spent, whole, models, choices, changed, size = (metrics[f"forgetting.{name}"] for name in names)
    share = f", {percent(spent / whole)} of the {number(whole)} for retraining everything" if whole else ""
    sentences = [
        f"Forgetting took {number(spent)} client-rounds{share}, and changed {count(models)} "
        f"model{'s' * (models != 1)}. The server must store {number(size)} MB."
    ]
    if choices:
        sentences.append(f"Without the leavers, {count(changed)} of {count(choices)} choices of others would differ.")
    return sentences
