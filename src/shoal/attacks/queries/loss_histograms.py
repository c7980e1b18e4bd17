"""Risk from clients' histograms of their losses, without shadow models.

Every client sends two histograms of the loss of the model that it trains: of its training examples, which are members,
and of its hold-out examples. The server adds them up, takes the threshold on the loss that tells the two apart best on
half of the clients, and judges it on the other half (cross-fitting), so that the threshold is not judged on what it was
chosen by. Source of the attack: Yeom et al. 2018, arXiv:1709.01604, Adversary 1, with another threshold; of the noise:
Ghosh, Roughgarden, Sundararajan 2009, arXiv:0811.2841 (the geometric mechanism).

A relative loss is less the mean loss on the other models. These trained on none of the client's examples, and so say
how difficult each is (`OtherClusters`); where there is one model it is the loss.

What the server learns of a client is its histograms: how many training and hold-out examples it has, and how well the
model fits them. With noise it learns that with differential privacy, epsilon an estimate for one example more or less;
estimates add up. That covers the histograms alone, not the updates that the client sends.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from shoal.attacks.membership_attack import losses
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import PositiveFloat, settings
from shoal.data.federation import Federation
from shoal.data.shards import Shards
from shoal.engine import Engine, State
from shoal.metrics.intervals import Estimate, Floats, Ints, mean_rate_interval

EDGES: Floats = np.geomspace(1e-4, 20.0, 33)
"""Edges of 32 bins of the loss, in nats; one more bin on each side takes smaller and larger losses."""

RELATIVE_EDGES: Floats = np.concatenate([-EDGES[::-1], EDGES])
"""Edges of the bins of a loss less that of other models."""

Counts = Floats


@settings
class LossHistograms:
    """The histograms that clients send for the "histogram" and "relative-histogram" estimators.

    Args:
        epsilon: of the noise that each client adds to each bin, discrete Laplace noise ``P(x) ~ exp(-epsilon |x|)``,
            anew for each estimate; left out: no noise.

    Example:
        >>> import shoal
        >>> training, holdout = ([[-1.0], [1.0]], [0, 1]), ([[3.0]], [1])
        >>> federation = shoal.Federation.from_tensors([training] * 3, holdout=[holdout] * 3, test=holdout)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> state = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=1).state
        >>> with shoal.Engine(model) as engine:
        ...     counts = shoal.LossHistograms().received(state, federation, engine, shoal.Stream(0))
        ...     noisy = shoal.LossHistograms(epsilon=1.0).received(state, federation, engine, shoal.Stream(0))
        ...
        >>> counts.shape, counts.sum(axis=2).tolist(), bool((counts == noisy).all())
        ((3, 2, 34), [[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]], False)
    """

    epsilon: Annotated[PositiveFloat | None, Field(alias="histogram_epsilon")] = None

    def accuracies(
        self, state: State, federation: Federation, engine: Engine, stream: Stream, *, relative: bool = False
    ) -> list[Estimate]:
        """The balanced accuracy of the cross-fitted loss threshold on each of K models, in [0, 1].

        An estimate below 0.5 is one, of a threshold that does not carry over to other clients. NaN for a model of which
        there are no histograms to judge by, and for one that a single client trains while there is no other model.

        Raises:
            InputError: no client has hold-out examples.
        """
        require_holdout(federation, "relative-histogram" if relative else "histogram")
        counts = self.received(state, federation, engine, stream("noise"), relative=relative)
        return accuracies_of(counts, state.assignment, federation.ids, len(state.models), stream)

    def received(
        self, state: State, federation: Federation, engine: Engine, stream: Stream, *, relative: bool = False
    ) -> Counts:
        """Histograms (N, 2, B) of each client's members and hold-outs, as the server receives them.

        A client that has not yet trained a model sends nothing, which is zeros.
        """
        counts = np.zeros((len(federation), 2, len(RELATIVE_EDGES if relative else EDGES) + 1))
        for k, model in enumerate(state.models):
            clients = torch.nonzero(state.assignment == k).flatten()
            others = [other for j, other in enumerate(state.models) if j != k] if relative else None
            for kind, shards in enumerate((federation.clients, federation.holdout)):
                counts[clients.numpy(), kind] = histograms(model, shards.take(clients), engine, others)
        if self.epsilon is not None:
            some = torch.nonzero(state.assignment >= 0).flatten()
            for i, seed in zip(some.tolist(), stream.seeds(federation.ids[some]).tolist(), strict=True):
                counts[i] += discrete_laplace(self.epsilon, counts[i].shape, np.random.default_rng(seed))
        return counts


def accuracies_of(counts: Counts, assignment: Tensor, ids: Tensor, clusters: int, stream: Stream) -> list[Estimate]:
    """The server's part of `LossHistograms.accuracies`, from what it received.

    Args:
        counts: (N, 2, B), zeros of clients that sent nothing.
        assignment: (N,) int64, the model of each client; -1: none.
        ids: (N,) int64.
        clusters: K, their number.
        stream: of the halves.
    """
    return [
        cross_fitted_accuracy(
            counts[assignment.numpy() == k],
            _halves(ids[assignment == k], stream("halves", k)),
            elsewhere=counts[((assignment >= 0) & (assignment != k)).numpy()].sum(axis=0),
        )
        for k in range(clusters)
    ]


def own_risks(models: Tensor, members: Shards, holdout: Shards, engine: Engine) -> Tensor:
    """A client's own estimates (K,) float64 of the risk of K models (K, P), the attack's balanced accuracies: no
    server, no shadow models, nothing sent.

    By the best threshold on the loss, taken from every second of the client's own members and hold-outs and judged on
    the others, and the other way round. The idea of an estimate by the client is of IFCA-MIR, section 5.7.

    Raises:
        InputError: fewer than two members or two hold-outs.
    """
    fewest = min(len(members.indices), len(holdout.indices))
    require(
        fewest >= 2, f"a client's own estimate of risk needs at least 2 training and 2 hold-out examples; got {fewest}"
    )
    half = np.array([0, 1])
    estimates = []
    halves = [(_every_second(members, first), _every_second(holdout, first)) for first in (0, 1)]
    for model in models:
        counts = np.stack([client_histograms(model, *half_of_both, engine) for half_of_both in halves])
        estimates.append(cross_fitted_accuracy(counts, half, elsewhere=np.zeros(counts.shape[1:])).value)
    return torch.tensor(estimates, dtype=torch.float64)


def _every_second(shards: Shards, first: int) -> Shards:
    """Every second example of one owner, beginning with the one at ``first``."""
    indices = shards.indices[first::2]
    return Shards.from_indices(shards.x, shards.y, indices, torch.tensor([len(indices)]))


def require_holdout(federation: Federation, estimator: str) -> None:
    """Raise `InputError` unless some client has hold-out examples."""
    require(
        len(federation.holdout.indices) > 0,
        f"the '{estimator}' estimator needs hold-out examples of the clients ('holdout_examples'); got none",
    )


def cross_fitted_accuracy(counts: Counts, half: Ints, elsewhere: Counts) -> Estimate:
    """The balanced accuracy of a threshold that each half of the clients takes from the other; NaN without one.

    The interval is that of the counts as they were received: the noise of clients who add it is not in it.

    Args:
        counts: (n, 2, B), of n clients.
        half: (n,) 0 or 1.
        elsewhere: (2, B), of other models' clients, where the other half has no members or no hold-outs.
    """
    right, total = np.zeros(2), np.zeros(2)
    for judged in (0, 1):
        here, other_half = (counts[side].sum(axis=0) for side in (half == judged, half != judged))
        if not here.any():
            continue
        usable = [histograms for histograms in (other_half, elsewhere) if (histograms.sum(axis=1) > 0).all()]
        if not usable:
            return Estimate()
        cut = best_cut(usable[0])
        right += here[0, :cut].sum(), here[1, cut:].sum()
        total += here.sum(axis=1)
    # Noise can leave a total without examples, and rates outside [0, 1].
    if not (total > 0).all():
        return Estimate()
    rates = right / total
    value = float(np.clip(rates.mean(), 0, 1))
    return Estimate(value, *mean_rate_interval(np.clip(rates, 0, 1).tolist(), total.tolist()))


def best_cut(counts: Counts) -> int:
    """Number of lowest bins to call members that tells members and hold-outs (2, B) apart best; the lowest of several.

    >>> best_cut(np.array([[3.0, 1.0, 0.0], [0.0, 1.0, 2.0]]))
    1
    """
    called = np.concatenate([np.zeros((2, 1)), counts.cumsum(axis=1)], axis=1)
    members, holdouts = called[:, -1]
    # The difference of the rates, times both totals: integers, so that equally good cuts are equal.
    return int(np.argmax(called[0] * holdouts - called[1] * members))


def discrete_laplace(epsilon: float, shape: tuple[int, ...], generator: np.random.Generator) -> Counts:
    """Integers with P(x) in proportion to exp(-epsilon |x|), as the difference of two geometric ones."""
    success = -np.expm1(-epsilon)
    first, second = (generator.geometric(success, shape).astype(np.float64) for _ in range(2))
    return first - second


def histograms(model: Tensor, shards: Shards, engine: Engine, others: Sequence[Tensor] | None = None) -> Counts:
    """Numbers (n, B) of each owner's examples with a loss in each bin; of a relative one with ``others`` (P,)."""
    edges = EDGES if others is None else RELATIVE_EDGES
    counts = np.zeros((len(shards), len(edges) + 1))
    if len(shards.indices):
        rows = shards.indices.to(shards.y.device)

        def of(row: Tensor) -> Floats:
            return losses(engine.outputs(row, shards.x, rows).cpu(), shards.y[rows].cpu(), engine.model.loss)

        loss = of(model) - (np.mean([of(other) for other in others], axis=0) if others else 0.0)
        np.add.at(counts, (shards.owners().numpy(), np.searchsorted(edges, loss, side="right")), 1)
    return counts


def client_histograms(model: Tensor, members: Shards, holdout: Shards, engine: Engine) -> Counts:
    """Histograms (2, B) of one client's members and hold-outs."""
    return np.stack([histograms(model, shards, engine)[0] for shards in (members, holdout)])


def _halves(ids: Tensor, stream: Stream) -> Ints:
    """Random halves (n,), 0 or 1, whatever the order of clients."""
    rank = stream.seeds(ids).argsort().argsort()
    return (rank % 2).numpy()
