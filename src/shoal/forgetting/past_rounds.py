"""What forgetting methods ask of a run: whether its clusters train alone, and random draws that are its own."""

from dataclasses import replace

from shoal.core.errors import require
from shoal.engine import Algorithm, LocalSGD, Release, State, Training, with_bases

BYTES = 4
"""Of a parameter that a server keeps."""


def trains_clusters_alone(algorithm: Algorithm) -> bool:
    """Whether, given the clients' choices, a model depends on its own clients alone; see `shoal.engine.Algorithm`."""
    return all(getattr(part, "trains_clusters_alone", False) for part in with_bases(algorithm))


def require_approximable(name: str, algorithm: Algorithm, local: LocalSGD, release: Release | None) -> None:
    """Raise `InputError` where a method that changes each cluster's model by itself cannot work."""
    require(
        trains_clusters_alone(algorithm),
        f"'{name}' needs models that depend on their own clients alone, as those of 'fedavg', 'fedprox' and 'ifca'; "
        f"got {getattr(algorithm, 'title', type(algorithm).__name__)}; use 'exact'",
    )
    require(release is None, f"'{name}' cannot follow models that are replaced after every round; use 'exact'")
    require(not local.private, f"'{name}' cannot follow the noisy steps of DP-SGD; use 'exact'")


def new_draws(training: Training, state: State) -> Training:
    """``training`` with random draws of its own after ``state``; the past is trained again without reports."""
    return replace(training, stream=training.stream("forgetting", state.round), record_every=0)


def same_draws(training: Training, state: State) -> Training:
    """``training`` with the random draws of the run, unless clients add noise: the same noise on two models would
    cancel in their difference.
    """
    private = any(training.local_of(state, k).private for k in range(len(state.models)))
    noisy = private or training.client_filter is not None
    return new_draws(training, state) if noisy else replace(training, record_every=0)
