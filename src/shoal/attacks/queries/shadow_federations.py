"""Shadow models trained as a cluster was: by rounds of federated averaging, over owners of shadow examples.

A model that many clients trained over many rounds knows their examples in another way than one that a single owner
trained for a round, and an attack fitted on the second looks for the wrong signs. Source: Shokri et al. 2017,
arXiv:1610.05820, section V-C (shadow models are trained like the target); McMahan et al. 2017, arXiv:1602.05629 (how).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.shards import GroupedExamples, Shards
from shoal.engine import Engine, LocalSGD, LocalTraining, RoundPlan, State, averaging_weights
from shoal.engine.rounds.cohort_trainer import CohortTrainer

_MOST_OWNERS = 2**20
"""Of one shadow model; their names are consecutive, so what is random in one does not depend on the others."""


def split_between_owners(examples: int, sizes: Tensor) -> Tensor:
    """How many of some examples each owner gets, in proportion to clients' sizes.

    Args:
        examples: at least 1.
        sizes: (n,) int64, of the clients.

    Returns:
        (m,) int64, which sum to ``examples``: the sizes themselves where they do. Who would get none is left out.

    >>> split_between_owners(10, torch.tensor([8, 4, 8])), split_between_owners(1, torch.tensor([5, 5, 5]))
    (tensor([4, 2, 4]), tensor([1]))
    """
    bounds = (sizes.cumsum(0).double() * examples / sizes.sum()).round().long()
    parts = bounds.diff(prepend=bounds.new_zeros(1))
    return parts[parts > 0]


@dataclass(frozen=True, eq=False)
class ShadowFederation:
    """One shadow model and its owners.

    Args:
        start: (P,).
        examples: (M,) int64, the positions in the shadow set of the examples that the model is trained on.
        sizes: (m,) int64, how many of these each owner has, in order.
        local: local training of the owners in the last round (`LocalSGD.at`).
    """

    start: Tensor
    examples: Tensor
    sizes: Tensor
    local: LocalSGD


def train_shadow_federations(
    federations: Sequence[ShadowFederation], shadow: GroupedExamples, rounds: int, engine: Engine, stream: Stream
) -> Tensor:
    """Train S shadow models by federated averaging, the owners of all of them together in every round.

    Owners weigh by examples, and all of a model take part in each round. Local training is the clients' of the last
    round, in earlier rounds at their learning rate; what a defence changed from round to round is not repeated.

    Args:
        federations: S, their number.
        shadow: the server's examples.
        rounds: how many.
        engine: computes it.
        stream: of batches and all else that is random in local training.

    Returns:
        (S, P), on the CPU.

    Raises:
        DivergenceError: a result is not finite.
    """
    counts = torch.tensor([len(each.sizes) for each in federations])
    which = torch.repeat_interleave(torch.arange(len(federations)), counts)
    names = torch.cat([s * _MOST_OWNERS + torch.arange(len(each.sizes)) for s, each in enumerate(federations)])
    indices, sizes = (torch.cat([getattr(each, name) for each in federations]) for name in ("examples", "sizes"))
    shards = Shards.from_indices(shadow.x, shadow.y, indices, sizes)
    weights = averaging_weights(which, sizes, len(federations))
    state = State.initial(torch.stack([each.start for each in federations]), len(which))
    for number in range(1, rounds + 1):
        trainer = CohortTrainer(
            engine=engine,
            shards=shards,
            ids=names,
            local_of=lambda s, _, left=rounds - number: federations[s].local.rounds_earlier(left),
            batches=stream("round", number, "batches"),
        )
        plan = RoundPlan(which, (LocalTraining(state.models, which, weights),))
        state = replace(state, models=trainer.train(state, plan)[0].models)
    return state.models
