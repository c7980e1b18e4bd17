"""What a coordinator did, in words, from the rows of rounds.csv."""

from collections.abc import Iterator

import pandas as pd

from shoal.control import COLUMN, Coordinator
from shoal.core.formats import decimal, percent


def directive_name(column: str) -> str:
    """A directive in words, by its column.

    >>> directive_name("directive.shorter_training")
    'shorter training'
    """
    return column.removeprefix(COLUMN).replace("_", " ")


def history(rounds: pd.DataFrame, coordinator: Coordinator) -> tuple[str, ...]:
    """Paragraphs: what each cluster was asked for and when, and which limits cannot be kept at the cost allowed.

    Args:
        rounds: one row per round and cluster, with the columns of a coordinator.
        coordinator: of the run.
    """
    columns = [column for column in map(str, rounds) if column.startswith(COLUMN)]
    asked = {int(str(k)): list(_asked(own, columns)) for k, own in rounds.groupby("cluster")}
    if any(asked.values()):
        sentences = [
            f"Cluster {k} was asked for {' and for '.join(said)}."
            if said
            else f"Cluster {k} was never asked for anything."
            for k, said in asked.items()
        ]
    else:
        sentences = [_nothing(rounds, coordinator)]
    sentences += _at_the_end(rounds, coordinator)
    unmet = [sentence for k, own in rounds.groupby("cluster") for sentence in _unmet(int(str(k)), own, coordinator)]
    private = f"{COLUMN}dp_sgd" in columns
    noise = "No epsilon is stated, since the strength of DP-SGD differs by cluster and round."
    return (" ".join(sentences), *([" ".join(unmet)] if unmet else []), *([noise] if private else []))


def _asked(own: pd.DataFrame, columns: list[str]) -> Iterator[str]:
    """What one cluster was asked for, a clause for each directive that was ever given."""
    for column in columns:
        given = own.set_index("round")[column].fillna(0.0)
        given = given[given != 0]
        if given.empty:
            continue
        name, last = directive_name(column), float(own[column].fillna(0.0).iloc[-1])
        first, most = int(str(given.index[0])), int(str(given.abs().idxmax()))
        # What stands in the row of the first round may have been given before it.
        when = f"first after round {first}" if first > int(own["round"].iloc[0]) else "from the start"
        name, unit = ("a lower price", " nats") if name == "price" else (name, " of full strength")
        at_most = f"at most {given[most]:.2f}{unit}" + (f", after round {most}" if most > first else "")
        yield f"{name} ({when}; {at_most}; {f'{last:.2f}' if last else 'none'} at the end)"


def _nothing(rounds: pd.DataFrame, coordinator: Coordinator) -> str:
    """Why no directive was ever given."""
    most, target = rounds["over_limit"].max(), percent(coordinator.target)
    sentence = "The coordinator never asked for anything, so training was that of the algorithm alone:"
    if pd.isna(most):
        return f"{sentence} risk was never estimated."
    if most <= coordinator.target:
        return f"{sentence} at no estimate more than {percent(most)} of a model's members were over their limit."
    return (
        f"{sentence} up to {percent(most)} of a model's members were over their limit (target {target}), but its gain "
        "or the cost that it may cause leaves it nothing to ask for."
    )


def _at_the_end(rounds: pd.DataFrame, coordinator: Coordinator) -> Iterator[str]:
    """The share of each model's members that is over its limit; nothing where risk was never estimated."""
    last = rounds.groupby("cluster")["over_limit"].last().dropna()
    if len(last):
        shares = ", ".join(f"{percent(share)} in cluster {k}" for k, share in last.items())
        yield f"Over their limit at the last estimate (target {percent(coordinator.target)}): {shares}."


def _unmet(k: int, own: pd.DataFrame, coordinator: Coordinator) -> Iterator[str]:
    """When a cluster's limits could not be kept; nothing where they always could."""
    spells = list(_spells(own))
    if not spells:
        return
    cost = f"with knobs at the most that a cost of {decimal(coordinator.max_cost)} of held-out accuracy allows"
    (since, until), before = spells[-1], spells[:-1]
    if until is None:
        again = f", as before {_in_words(before)}" if before else ""
        yield f"Since round {since} cluster {k} cannot be brought within its members' limits{again}, {cost}."
    else:
        yield f"Cluster {k} could not be brought within its members' limits {_in_words(spells)}, {cost}."


def _in_words(spells: list[tuple[int, int | None]]) -> str:
    return " and ".join(f"from round {begins} to round {ends}" for begins, ends in spells)


def _spells(own: pd.DataFrame) -> Iterator[tuple[int, int | None]]:
    """The rounds after which a cluster's limits began and ceased to be out of reach; None: they still are."""
    begins = None
    for number, unmet in zip(own["round"].tolist(), own["limit_unmet"].tolist(), strict=True):
        if unmet == 1 and begins is None:
            begins = int(number)
        elif unmet != 1 and begins is not None:
            yield begins, int(number)
            begins = None
    if begins is not None:
        yield begins, None
