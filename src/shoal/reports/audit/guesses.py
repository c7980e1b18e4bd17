"""What the server guesses beside membership, as a table of an audit's page."""

from collections.abc import Mapping

from shoal.core.formats import DASH, decimal
from shoal.reports.attack_titles import attack_head
from shoal.reports.audit.audit_tables import Cell, Listing, Row, Section
from shoal.reports.estimate import Estimate

GUESSED: Mapping[str, str] = {
    "source-inference": "whose a record is, among all clients",
    "source-inference-in-cluster": "whose a record is, among the clients of its cluster",
    "group-inference": "which group a client is of, from its last cluster",
    "cluster-identity": "which group a client is of, from its clusters in all recorded rounds",
    "preference-inference": "whether a client is of the stricter half of its group, from its clusters in all recorded "
    "rounds",
}
"""What is guessed, by the keys in audit.json; in the order of the table."""


def guesses_table(guesses: Mapping[str, float]) -> Listing | None:
    """A row for each kind of guess in ``guesses``, which has the keys of `Audit.guesses`; None where there is none."""
    names = [name for name in GUESSED if f"{name}.accuracy" in guesses]
    if not names:
        return None
    rows = tuple(Row((Cell(attack_head(name)), Cell(GUESSED[name]), *_figures(name, guesses))) for name in names)
    note = "Below each accuracy its 95 % interval."
    if "cluster-identity" in names:
        note += (
            " Cluster identity: the groups of half of the clients are known; each round has a table of how often each "
            "group chose each cluster, and the groups of the others are guessed by all rounds together; balanced "
            "accuracy over groups."
        )
        if "cluster-identity.last_round" in guesses:
            last = decimal(guesses["cluster-identity.last_round"])
            note += f" From each client's last recorded round alone it would be {last}."
    if "preference-inference" in names:
        note += (
            " Preference inference: the halves of half of the clients are known, those of the others are guessed by "
            "all rounds together; stricter clients tolerate less risk. Every group has as many of both, so a client's "
            "group says nothing of its half."
        )
    heads = (("attack", "", False), ("guesses", "", False), ("accuracy", "", True), ("chance", "", True))
    return Listing(heads, (Section("", rows),), note)


def _figures(name: str, guesses: Mapping[str, float]) -> tuple[Cell, Cell]:
    nan = float("nan")
    value, low, high = (guesses.get(f"{name}.accuracy{end}", nan) for end in ("", ".low", ".high"))
    accuracy, chance = Estimate(value, low, high), guesses.get(f"{name}.chance")
    return (
        Cell(accuracy.text, accuracy.interval, number=True),
        Cell(DASH if chance is None else decimal(chance), number=True),
    )
