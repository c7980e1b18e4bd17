"""Risk estimates from clients' loss histograms, without shadow models.

Every client sends two histograms of its model's loss: on its training examples (members) and on its hold-out examples
(non-members). The server adds up the histograms, chooses the best loss threshold on one half of the clients, and
measures the accuracy of the threshold on the other half (cross-fitting).

A relative loss is the loss minus the mean loss of the other models, which did not train on the client's examples
(`OtherClusters`). In a federation with one model, the relative loss equals the loss.

The histograms reveal each client's numbers of training and hold-out examples, and how well the model fits the examples.
Noise on the histograms makes each estimate epsilon-differentially private under the addition or removal of one example.
The noise does not protect the client's updates, and the epsilons of several estimates add up.

Source: Yeom et al. 2018, arXiv:1709.01604, Adversary 1, with another threshold (attack); Ghosh, Roughgarden,
Sundararajan 2009, arXiv:0811.2841, the geometric mechanism (noise).
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
"""The edges of 32 bins of the loss, in nats; two more bins count smaller and larger losses."""

RELATIVE_EDGES: Floats = np.concatenate([-EDGES[::-1], EDGES])
"""Edges of the bins of a relative loss."""

Counts = Floats


@settings
class LossHistograms:
    """The clients' loss histograms for the "histogram" and "relative-histogram" estimators.

    Args:
        epsilon: the epsilon of the discrete Laplace noise ``P(x) ~ exp(-epsilon |x|)`` in every bin of a client's loss
            histograms; without this key, clients add no noise.

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
        """Estimate the balanced accuracy of the cross-fitted loss threshold on each of K models, in [0, 1].

        An estimate is below 0.5 if the threshold does not transfer to other clients. The estimate is NaN for a model
        that no client trained, or if one client trained the federation's only model.

        Raises:
            InputError: no client has hold-out examples.
        """
        require_holdout(federation, "relative-histogram" if relative else "histogram")
        counts = self.received(state, federation, engine, stream("noise"), relative=relative)
        return accuracies_of(counts, state.assignment, federation.ids, len(state.models), stream)

    def received(
        self, state: State, federation: Federation, engine: Engine, stream: Stream, *, relative: bool = False
    ) -> Counts:
        """Compute the histograms of each client's members and hold-out examples, as received by the server, (N, 2, B).

        The histograms of a client that has not trained a model are 0.
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
    """Compute the estimates of `LossHistograms.accuracies` from the received histograms.

    Args:
        counts: the histograms of each client, (N, 2, B); all 0 for a client that sent no histograms.
        assignment: the model of each client, (N,) int64; -1 for a client without a model.
        clusters: the number K of models.
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
    """Estimate the risk of each of K models (K, P) at one client, (K,) float64, without shadow models.

    The risk is the balanced accuracy of the best loss threshold, cross-fitted on two halves of the client's members and
    hold-out examples.

    Source: IFCA-MIR, section 5.7 (idea).

    Raises:
        InputError: the client has fewer than two members, or fewer than two hold-out examples.
    """
    fewest = min(len(members.indices), len(holdout.indices))
    require(
        fewest >= 2,
        "a client's risk estimate needs at least 2 training examples and 2 hold-out examples "
        f"(got {fewest} in the smaller set)",
    )
    estimates = []
    halves = [(_every_second(members, first), _every_second(holdout, first)) for first in (0, 1)]
    for model in models:
        counts = np.stack([client_histograms(model, *parts, engine) for parts in halves])
        estimates.append(cross_fitted_accuracy(counts, np.arange(2), elsewhere=np.zeros(counts.shape[1:])).value)
    return torch.tensor(estimates, dtype=torch.float64)


def _every_second(shards: Shards, first: int) -> Shards:
    """Take every second example of one owner, starting with the example at index ``first``."""
    indices = shards.indices[first::2]
    return Shards.from_indices(shards.x, shards.y, indices, torch.tensor([len(indices)]))


def require_holdout(federation: Federation, estimator: str) -> None:
    """Raise `InputError` if no client has hold-out examples."""
    require(
        len(federation.holdout.indices) > 0,
        f"the '{estimator}' estimator needs hold-out examples (got none); set 'holdout_examples'",
    )


def cross_fitted_accuracy(counts: Counts, half: Ints, elsewhere: Counts) -> Estimate:
    """Choose a loss threshold on each half of the clients, and compute the balanced accuracy on the other half.

    The accuracy is NaN if no threshold can be chosen. The confidence interval ignores the noise that clients add to
    their histograms.

    Args:
        counts: the histograms of n clients, (n, 2, B).
        half: the half of each client, 0 or 1, (n,).
        elsewhere: the summed histograms of other models' clients, (2, B), used if a half has no members or no hold-out
            examples.
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
    """Return the number of lowest bins to classify as members, which maximises the balanced accuracy on (2, B).

    >>> best_cut(np.array([[3.0, 1.0, 0.0], [0.0, 1.0, 2.0]]))
    1
    """
    below = np.concatenate([np.zeros((2, 1)), counts.cumsum(axis=1)], axis=1)
    members, holdouts = below[:, -1]
    # The difference of the rates times both totals: integers, so that ties are exact.
    return int(np.argmax(below[0] * holdouts - below[1] * members))


def discrete_laplace(epsilon: float, shape: tuple[int, ...], generator: np.random.Generator) -> Counts:
    """Draw integers with P(x) in proportion to exp(-epsilon |x|), as the difference of two geometric variables."""
    success = -np.expm1(-epsilon)
    first, second = (generator.geometric(success, shape).astype(np.float64) for _ in range(2))
    return first - second


def histograms(model: Tensor, shards: Shards, engine: Engine, others: Sequence[Tensor] | None = None) -> Counts:
    """Count each owner's examples per bin of the loss, or of the relative loss if there are ``others``, (n, B)."""
    edges = EDGES if others is None else RELATIVE_EDGES
    counts = np.zeros((len(shards), len(edges) + 1))
    if len(shards.indices):
        rows = shards.indices.to(shards.y.device)

        def losses_of(row: Tensor) -> Floats:
            return losses(engine.outputs(row, shards.x, rows).cpu(), shards.y[rows].cpu(), engine.model.loss)

        loss = losses_of(model) - (np.mean([losses_of(other) for other in others], axis=0) if others else 0.0)
        np.add.at(counts, (shards.owners().numpy(), np.searchsorted(edges, loss, side="right")), 1)
    return counts


def client_histograms(model: Tensor, members: Shards, holdout: Shards, engine: Engine) -> Counts:
    """Compute the histograms of one client's members and hold-out examples, (2, B)."""
    return np.stack([histograms(model, shards, engine)[0] for shards in (members, holdout)])


def _halves(ids: Tensor, stream: Stream) -> Ints:
    """Draw random halves (n,), 0 or 1, which do not depend on the clients' order."""
    rank = stream.seeds(ids).argsort().argsort()
    return (rank % 2).numpy()
