"""Checks and random draws that forgetting methods share."""

from dataclasses import replace

from shoal.core.errors import require
from shoal.engine import Algorithm, LocalSGD, Release, State, Training, with_bases

BYTES = 4
"""Bytes per stored parameter."""


def trains_clusters_alone(algorithm: Algorithm) -> bool:
    """Return whether each model depends only on the clients that choose the model (see `shoal.engine.Algorithm`)."""
    return all(getattr(part, "trains_clusters_alone", False) for part in with_bases(algorithm))


def require_approximable(name: str, algorithm: Algorithm, local: LocalSGD, release: Release | None) -> None:
    """Raise `InputError` if a method cannot change each cluster's model separately."""
    require(
        trains_clusters_alone(algorithm),
        f"'{name}' needs an algorithm that trains each model on its cluster's clients alone "
        f"(got {getattr(algorithm, 'title', type(algorithm).__name__)}); use 'exact'",
    )
    require(
        release is None, f"'{name}' does not support a release that replaces the models after every round; use 'exact'"
    )
    require(not local.private, f"'{name}' does not support DP-SGD; use 'exact'")


def new_draws(training: Training, state: State) -> Training:
    """Return ``training`` with new random draws after ``state``, and without recorded updates."""
    return replace(training, stream=training.stream("forgetting", state.round), record_every=0)


def same_draws(training: Training, state: State) -> Training:
    """Return ``training`` with the run's random draws, or with new draws if clients add noise.

    Equal noise on two models would cancel in their difference.
    """
    private = any(training.local_of(state, k).private for k in range(len(state.models)))
    noisy = private or training.client_filter is not None
    return new_draws(training, state) if noisy else replace(training, record_every=0)
