"""What an algorithm wraps, and what a wrapper cannot wrap."""

from collections.abc import Iterator

from shoal.core.errors import require
from shoal.engine import LocalSGD, client_trainings


def with_bases(algorithm: object) -> Iterator[object]:
    """An algorithm, the one that it wraps as its ``base``, and so on."""
    while algorithm is not None:
        yield algorithm
        algorithm = getattr(algorithm, "base", None)


def require_kept_models(wrapper: object) -> None:
    """Raise `InputError` where a wrapper's base changes its number of models."""
    _, *bases = with_bases(wrapper)
    for base in bases:
        require(
            not getattr(base, "changes_clusters", False),
            f"{type(wrapper).__name__}'s 'base' must keep its number of models, which {type(base).__name__} changes "
            "while it trains",
        )


def require_no_first_round(wrapper: object) -> None:
    """Raise `InputError` where a wrapper's base trains otherwise in the first of its rounds.

    After rounds of the wrapper's own that would not be the federation's first round, as which its epsilon is counted.
    """
    _, *bases = with_bases(wrapper)
    for base in reversed(bases):
        require(
            client_trainings(base, LocalSGD()).first is None,
            f"{type(wrapper).__name__}'s 'base' must not have a first round of its own, as {type(base).__name__} has",
        )
