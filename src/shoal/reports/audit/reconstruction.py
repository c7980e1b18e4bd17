"""What is reconstructed of clients' updates from released models, as a table of an audit's page."""

from collections.abc import Mapping
from math import isnan

from shoal.core.formats import DASH, count, decimal
from shoal.reports.audit.audit_tables import MOST_ROWS, Cell, Listing, Row, Section
from shoal.reports.estimate import Estimate

_KEY = "reconstruction."


def reconstruction_table(guesses: Mapping[str, float]) -> Listing | None:
    """A row for all clients and for each group; None where nothing was reconstructed.

    Args:
        guesses: `Audit.guesses`, with the keys of `reconstruction_metrics`.
    """
    names = [key.removeprefix(_KEY).removesuffix(".cosine") for key in guesses if key.startswith(_KEY)
             and key.endswith(".cosine")]  # fmt: skip
    if not names:
        return None
    # Where there is one group, all clients are it.
    shown = names[:1] if len(names) == 2 else names[:MOST_ROWS]
    rows = tuple(Row(_cells(name, guesses)) for name in shown)
    heads = (
        ("clients", "", False), ("number", "", True), ("cosine", "of the reconstructed update", True),
        ("baseline", "of the models' mean move", True), ("gain", "cosine minus baseline", True),
        ("largest", "cosine of a client", True), ("resolution", "alone: 1", True),
    )  # fmt: skip
    note = (
        f"Who has the models before and after {count(int(guesses[_KEY + 'rounds']))} rounds and knows who trained "
        "which solves for one update of each client, and sees none. Cosine: with the mean of the updates that the "
        "client sent; baseline: what the mean move of the models that it trained has with the same, without solving "
        "anything. Only a gain above 0 is the reconstruction's. Resolution: how much of an update is the client's own; "
        "of m clients who were never apart it is 1/m. The updates explain "
        f"{100 * guesses[_KEY + 'explained']:.0f} % of the squared moves; what changes from round to round they "
        "cannot. Below each figure its 95 % interval over clients, as if they were independent."
    )
    return Listing(heads, (Section("", rows),), note)


def _cells(name: str, guesses: Mapping[str, float]) -> tuple[Cell, ...]:
    nan, key = float("nan"), f"{_KEY}{name}."

    def estimate(metric: str) -> Cell:
        found = Estimate(*(guesses.get(f"{key}{metric}{end}", nan) for end in ("", ".low", ".high")))
        return Cell(_signed(found.value), _interval(found), number=True)

    number = Cell(count(int(guesses[f"{key}clients"])), number=True)
    largest = Cell(_signed(guesses[f"{key}largest"]), number=True)
    resolution = Cell(decimal(guesses[f"{key}resolution"]), number=True)
    return (Cell(name), number, estimate("cosine"), estimate("baseline"), estimate("gain"), largest, resolution)


def _signed(value: float) -> str:
    return DASH if isnan(value) else decimal(value).replace("-", "\N{MINUS SIGN}")


def _interval(found: Estimate) -> str:
    return found.interval.replace("-", "\N{MINUS SIGN}")
