"""The span attack: a record is a member exactly when it lies in the span of the rows of a dense layer's moves.

A dense layer has the gradient ``sum_i e_i a_i'``; its inputs a are the records themselves or the model's features of
them. So the rows of every sum of gradients are combinations of the inputs. With V the leading right singular vectors of
the moves of ``[W | b]``, stacked over rounds, and x with a last element of 1,

    score(x) = -|x - V V'x| / |x|

is 0 for members, up to rounding, and clearly below 0 for other records, if ``min(outputs x rounds, inputs)`` exceeds
the number of distinct inputs in the sum. The attack needs no shadow model, and clipping, momentum and weights of
aggregation do not change a span. Weight decay adds a multiple of W, which is subtracted (`Knowledge.decay_multiple`).

Source: the span check of Dimitrov, Baader, Müller, Vechev, "SPEAR: Exact Gradient Inversion of Batches in Federated
Learning", NeurIPS 2024, arXiv:2403.03945; as a test of membership "ProjRes", arXiv:2604.21197. Ours: moves of several
steps and rounds, sums over clients, and thresholds.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from shoal.attacks.span.candidates import Candidates, SpanScores
from shoal.attacks.span.knowledge import Knowledge
from shoal.attacks.span.layer_moves import moves_of_models, moves_of_updates
from shoal.attacks.span.layer_scores import scores_of_moves
from shoal.attacks.updates.update_scores import check_updates
from shoal.core.errors import require
from shoal.core.settings import settings
from shoal.data.preferences import View
from shoal.engine import Engine, RoundUpdates


@settings
class _SpanAttack:
    """The common part of both attacks."""

    layer: str | None = None
    false_alarms: Annotated[float, Field(gt=0, lt=0.5, strict=True)] = 0.05


@settings
class UpdateSpan(_SpanAttack):
    """The span attack of a server on each client's updates, stacked over the recorded rounds.

    Args:
        layer: the name of the dense layer to attack; None: the most informative one by its spectrum.
        false_alarms: the share of non-members above the threshold if the span is not exact.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import Candidates, UpdateSpan
        >>> draw = shoal.Stream(0).generator()
        >>> clients = [(torch.randn(4, 50, generator=draw), [0, 1, 0, 1]) for _ in range(5)]
        >>> federation = shoal.Federation.from_tensors(clients, test=(torch.randn(20, 50, generator=draw), [0, 1] * 10))
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=50, classes=2), hidden=16)
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     training = shoal.Training(*setting, record_every=1)
        ...     _, report = training.round(training.start())
        ...     asked = Candidates(federation.clients.x, known=federation.test.x)
        ...     found = UpdateSpan().score([report.updates], asked, engine)
        ...
        >>> (found.score > found.threshold).sum(axis=1).tolist(), found.exact.tolist()
        ([4, 4, 4, 4, 4], [True, True, True, True, True])
    """

    name: ClassVar[str] = "span"
    title: ClassVar[str] = "span of updates"
    view: ClassVar[View] = "server"

    def score(
        self, rounds: Iterable[RoundUpdates], candidates: Candidates, engine: Engine, knowledge: Knowledge | None = None
    ) -> SpanScores:
        """Return scores (N, M) of the clients that sent updates, in the order of their ids.

        Args:
            rounds: recorded updates; for SCAFFOLD all of them from the first.
            candidates: M records.
            engine: the engine of the trained model.
            knowledge: settings of training; None: plain SGD.

        Raises:
            InputError: no round, updates of another size or not finite, or a network without a dense layer.
        """
        recorded = sorted(rounds, key=lambda updates: updates.round)
        require(bool(recorded), "no round's updates were recorded")
        for updates in recorded:
            check_updates(updates, engine.model.layout.size)
        clients, known = torch.cat([updates.clients for updates in recorded]).unique(), knowledge or Knowledge()
        moves = moves_of_updates(recorded, clients, continued=known.continued)
        return scores_of_moves(self.layer, self.false_alarms, moves, len(clients), candidates, engine, known)


@settings
class ModelSpan(_SpanAttack):
    """The span attack of a client on the moves of each cluster's model, which are sums over clients, stacked over
    rounds.

    An outsider with the models of two rounds has one move.

    Args:
        layer, false_alarms: the settings of `UpdateSpan`.
    """

    name: ClassVar[str] = "span-models"
    title: ClassVar[str] = "span of models' moves"
    view: ClassVar[View] = "client"

    def score(
        self,
        models: Tensor | Sequence[Tensor],
        candidates: Candidates,
        engine: Engine,
        knowledge: Knowledge | None = None,
        first: int = 1,
    ) -> SpanScores:
        """Return scores (K, M) of the clusters' models.

        Args:
            models: (T + 1, K, P), those before the first and after each of T rounds; NaN where numbers are not sent.
            candidates, engine, knowledge: the arguments of `UpdateSpan.score`.
            first: the number of the first of the T rounds.

        Raises:
            InputError: fewer than two models, models of another size, or a network without a dense layer.
        """
        size, stacked = engine.model.layout.size, models if isinstance(models, Tensor) else torch.stack(list(models))
        fits = stacked.dim() == 3 and len(stacked) >= 2 and stacked.shape[2] == size
        require(fits, f"'models' must have shape (rounds + 1, K, {size}), with a round; got {tuple(stacked.shape)}")
        known = knowledge or Knowledge()
        moves = moves_of_models(stacked, candidates, engine, known, first)
        return scores_of_moves(self.layer, self.false_alarms, moves, stacked.shape[1], candidates, engine, known)
