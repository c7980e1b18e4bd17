"""The span attack, which classifies a record as a member if it lies in the row space of a dense layer's updates.

The gradient of a dense layer's weight is ``sum_i e_i a_i'``, with inputs a_i equal to the records or to the model's
features of the records. The rows of every sum of gradients are therefore linear combinations of the inputs. V holds the
leading right singular vectors of the updates of ``[W | b]``, stacked over rounds. With x extended by an element 1, the
score is

    score(x) = -|x - V V'x| / |x|

If ``min(outputs x rounds, inputs)`` exceeds the number of distinct inputs in the sum, members score 0 up to rounding,
and other records score clearly below 0. The attack needs no shadow model. Clipping, momentum and aggregation weights do
not change the span. Weight decay adds a multiple of W to an update, and the attack subtracts this multiple
(`Knowledge.decay_multiple`).

Source: "SPEAR: Exact Gradient Inversion of Batches in Federated Learning", Dimitrov, Baader, Müller, Vechev, NeurIPS
2024, arXiv:2403.03945 (span check); "ProjRes", arXiv:2604.21197 (membership test). Shoal adds several steps and rounds,
sums over clients, and the thresholds.
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
    """The common part of `UpdateSpan` and `ModelSpan`."""

    layer: str | None = None
    false_alarms: Annotated[float, Field(gt=0, lt=0.5, strict=True)] = 0.05


@settings
class UpdateSpan(_SpanAttack):
    """The span attack of a server on each client's updates, stacked over the recorded rounds.

    Args:
        layer: the name of the dense layer to attack; ``None`` means the most informative layer.
        false_alarms: the fraction of non-members above the threshold if the span is not exact.

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
        """Return one score per client and record, (N, M), for the clients with updates, ordered by id.

        Args:
            rounds: the recorded updates; SCAFFOLD needs all rounds from the first.
            candidates: the M records.
            knowledge: the training settings that the attacker knows; ``None`` means plain SGD.

        Raises:
            InputError: no round is recorded, an update is not finite or has a wrong size, or the network has no dense
                layer.
        """
        recorded = sorted(rounds, key=lambda updates: updates.round)
        require(bool(recorded), "'rounds' must hold the updates of at least one round (got none)")
        for updates in recorded:
            check_updates(updates, engine.model.layout.size)
        clients, known = torch.cat([updates.clients for updates in recorded]).unique(), knowledge or Knowledge()
        moves = moves_of_updates(recorded, clients, continued=known.continued)
        return scores_of_moves(self.layer, self.false_alarms, moves, len(clients), candidates, engine, known)


@settings
class ModelSpan(_SpanAttack):
    """The span attack of a client on each cluster model's mean updates, stacked over rounds.

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
        """Return one score per cluster and record, (K, M).

        Args:
            models: the models before the first round and after each of T rounds, (T + 1, K, P), with NaN for unsent
                parameters.
            first: the round number of the first update.

        Raises:
            InputError: there are fewer than two models, a model has a wrong size, or the network has no dense layer.
        """
        size, stacked = engine.model.layout.size, models if isinstance(models, Tensor) else torch.stack(list(models))
        fits = stacked.dim() == 3 and len(stacked) >= 2 and stacked.shape[2] == size
        require(
            fits,
            f"'models' must have shape (rounds + 1, K, {size}), with at least one round (got {tuple(stacked.shape)})",
        )
        known = knowledge or Knowledge()
        moves = moves_of_models(stacked, candidates, engine, known, first)
        return scores_of_moves(self.layer, self.false_alarms, moves, stacked.shape[1], candidates, engine, known)
