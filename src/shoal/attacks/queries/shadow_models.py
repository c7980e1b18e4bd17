"""Shadow models, which the server trains on its own examples to obtain models with known members.

Training by many clients over many rounds fits the members differently from training by one owner in one round.
"federated" training of shadow models imitates the clients and rounds.

Source: Shokri et al. 2017, arXiv:1610.05820, section V-C (training of shadow models like the target); McMahan et al.
2017, arXiv:1602.05629 ("federated" training); IFCA-MIR, Algorithm 2, lines 1 to 6 ("pooled" training).
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.attacks.membership_attack import Records, ReferenceModels
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Flag, Positive, settings
from shoal.data.federation import Federation
from shoal.data.shards import GroupedExamples, Shards
from shoal.engine import Engine, LocalSGD, LocalTraining, RoundPlan, State, averaging_weights
from shoal.engine.rounds.cohort_trainer import CohortTrainer

LOG = logging.getLogger(__name__)

_MAX_OWNERS = 2**20
"""The largest number of owners per shadow model; every model has its own range of owner ids."""


@settings
class ShadowModels:
    """The training of shadow models.

    Each shadow model draws a sample from the shadow set without replacement. One half of the sample trains the shadow
    model; the examples of the other half are non-members.

    Args:
        number: the number of shadow models per model of the federation (IFCA-MIR uses 3).
        size: the number of training examples per shadow model, at most half the shadow set. "cluster" means the total
            number of examples of the cluster's clients, but at least the average number per client.
        epochs: the number of passes over a shadow model's training examples, per round if ``shadow_training`` is
            "federated". "round" means as many passes as a client makes in a round.
        warm_start: whether shadow models with "pooled" ``shadow_training`` start from the federation's model instead of
            random parameters.
        training: the training of shadow models. With "pooled", a single simulated client trains each shadow model for
            one round (IFCA-MIR). With "federated", federated averaging trains each shadow model from random parameters,
            with the cluster's number of clients and the run's number of rounds so far. A "federated" estimate costs as
            much as repeating the run so far ``shadow_models`` times.

    Example:
        >>> import shoal
        >>> one, shadow = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]] * 10, [0, 1] * 10)
        >>> federation = shoal.Federation.from_tensors([one] * 3, test=one, shadow=shadow)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> state = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=1).state
        >>> [shoal.ShadowModels(size=size).size_of(state, federation, 0) for size in ("cluster", 4, 50)]
        [6, 4, 10]
    """

    number: Annotated[Positive, Field(alias="shadow_models")] = 3
    size: Annotated[Positive | Literal["cluster"], Field(alias="shadow_size")] = "cluster"
    epochs: Annotated[Positive | Literal["round"], Field(alias="shadow_epochs")] = "round"
    warm_start: Flag = True
    training: Annotated[Literal["pooled", "federated"], Field(alias="shadow_training")] = "pooled"

    def __post_init__(self) -> None:
        require(self.number > 1 or self.size != 1, "one shadow model needs at least 2 training examples (got 1)")

    def records(
        self,
        state: State,
        federation: Federation,
        engine: Engine,
        local: tuple[LocalSGD, ...],
        stream: Stream,
        *,
        keep_models: bool = False,
    ) -> list[Records]:
        """Train the shadow models of each of the K models of ``state``, and record their outputs.

        With ``keep_models``, `Records.reference` contains the shadow models.

        Raises:
            InputError: the shadow set has fewer than two examples.
            DivergenceError: the training of a shadow model diverged.
        """
        shadow, labels, records, models = federation.shadow, federation.shadow.y.cpu(), {}, {}
        for owner, model, examples in self._train(state, federation, engine, local, stream):
            member = torch.arange(len(examples)) < len(examples) // 2
            if keep_models:
                all_outputs = engine.outputs(model, shadow.x).cpu()
                members = torch.zeros(len(shadow), dtype=torch.bool)
                members[examples[member]] = True
                models[owner] = model.cpu(), members, all_outputs
                outputs = all_outputs[examples]
            else:
                outputs = engine.outputs(model, shadow.x, examples.to(shadow.y.device)).cpu()
            number = torch.full((len(examples),), owner % self.number)
            records[owner] = Records(outputs, labels[examples], member, number, examples, loss=engine.model.loss)
        clusters = []
        for k in range(len(state.models)):
            owners = range(k * self.number, (k + 1) * self.number)
            reference = None
            if keep_models:
                reference = ReferenceModels(*map(torch.stack, zip(*(models[owner] for owner in owners), strict=True)))
            clusters.append(Records.concatenate([records[owner] for owner in owners], reference))
        return clusters

    def _train(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Train the ``K * number`` shadow models; "pooled" training holds only a few of these models in memory.

        Yields:
            The index of a shadow model, its parameters (P,), and the indices of its sample in the shadow set. The first
            half of the sample trained the model.
        """
        shadow, clusters = federation.shadow, len(state.models)
        require(len(shadow) >= 2, f"shadow models need a shadow set of at least 2 examples (got {len(shadow)})")
        samples, inside = [], []
        for k in range(clusters):
            size = self.size_of(state, federation, k)
            for r in range(self.number):
                generator = stream("model", k, "shadow", r).generator()
                samples.append(torch.randperm(len(shadow), generator=generator)[: 2 * size])
                inside.append(samples[-1][:size])
        owners = torch.arange(clusters * self.number)
        if self.training == "federated":
            sizes, federations = federation.clients.sizes, []
            for s, examples in enumerate(inside):
                k = s // self.number
                of_cluster = sizes[state.assignment == k]
                # An empty cluster is attacked as if one average client had joined it.
                parts = split_between_owners(len(examples), of_cluster if len(of_cluster) else sizes[:1])
                passes = local[k] if self.epochs == "round" else replace(local[k], epochs=self.epochs, steps=None)
                start = engine.model.init(stream("start", s))
                federations.append(ShadowFederation(start, examples, parts, passes))
            ends = train_shadow_federations(federations, shadow, state.round, engine, stream)
            yield from zip(owners.tolist(), ends, samples, strict=True)
            return
        sizes = torch.tensor([len(rows) for rows in inside])
        shards = Shards.from_indices(shadow.x, shadow.y, torch.cat(inside), sizes)
        if self.warm_start:
            starts, start_of = state.models, owners // self.number
        else:
            starts, start_of = torch.stack([engine.model.init(stream("start", int(i))) for i in owners]), owners
        largest = int(federation.clients.sizes.max())
        # Clusters whose clients train in the same way are trained together; usually all.
        for alike in [training for i, training in enumerate(local) if training not in local[:i]]:
            some = owners[torch.tensor([local[k] == alike for k in (owners // self.number).tolist()])]
            passes = alike.passes_of(largest) if self.epochs == "round" else self.epochs
            training = replace(alike, epochs=passes, steps=None)
            randomness = training.randomness(shards, owners, stream("batches")).take(some)
            for trained, ends in engine.train(starts, start_of[some], shards.take(some), randomness, training):
                for owner, end in zip(some[trained].tolist(), ends, strict=True):
                    yield owner, end, samples[owner]

    def size_of(self, state: State, federation: Federation, k: int) -> int:
        """Return the number of training examples of a shadow model of cluster k, at most half the shadow set."""
        sizes = federation.clients.sizes
        if self.size == "cluster":
            size = max(int(sizes[state.assignment == k].sum()), round(float(sizes.double().mean())))
        else:
            size = self.size
        most = len(federation.shadow) // 2
        if size > most:
            LOG.info(
                "shadow models of cluster %d train on %d examples (half the shadow set) instead of %d", k, most, size
            )
        return min(size, most)


def split_between_owners(examples: int, sizes: Tensor) -> Tensor:
    """Split a number of examples between owners, in proportion to the clients' sizes.

    Returns:
        The number of examples per owner, (m,) int64; owners with 0 examples are left out.

    >>> split_between_owners(10, torch.tensor([8, 4, 8])), split_between_owners(1, torch.tensor([5, 5, 5]))
    (tensor([4, 2, 4]), tensor([1]))
    """
    bounds = (sizes.cumsum(0).double() * examples / sizes.sum()).round().long()
    parts = bounds.diff(prepend=bounds.new_zeros(1))
    return parts[parts > 0]


@dataclass(frozen=True, eq=False)
class ShadowFederation:
    """A shadow model and the owners of the model's training examples.

    Args:
        start: the initial parameters, (P,).
        examples: the indices of the training examples in the shadow set, (M,) int64.
        sizes: the number of examples of each owner, (m,) int64, in the order of ``examples``.
        local: the owners' local training in the last round (`LocalSGD.at`).
    """

    start: Tensor
    examples: Tensor
    sizes: Tensor
    local: LocalSGD


def train_shadow_federations(
    federations: Sequence[ShadowFederation], shadow: GroupedExamples, rounds: int, engine: Engine, stream: Stream
) -> Tensor:
    """Train S shadow models by federated averaging over their owners, and return the parameters, (S, P) on the CPU.

    An owner's weight is its number of examples. All owners take part in every round. The owners use the last round's
    local training with each round's learning rate; a defence's changes in earlier rounds are not repeated.

    Raises:
        DivergenceError: a shadow model has non-finite parameters.
    """
    counts = torch.tensor([len(model.sizes) for model in federations])
    model_of = torch.repeat_interleave(torch.arange(len(federations)), counts)
    names = torch.cat([s * _MAX_OWNERS + torch.arange(len(model.sizes)) for s, model in enumerate(federations)])
    indices, sizes = (torch.cat([getattr(model, name) for model in federations]) for name in ("examples", "sizes"))
    shards = Shards.from_indices(shadow.x, shadow.y, indices, sizes)
    weights = averaging_weights(model_of, sizes, len(federations))
    state = State.initial(torch.stack([model.start for model in federations]), len(model_of))
    for number in range(1, rounds + 1):
        trainer = CohortTrainer(
            engine=engine,
            shards=shards,
            ids=names,
            local_of=lambda s, _, left=rounds - number: federations[s].local.rounds_earlier(left),
            batches=stream("round", number, "batches"),
        )
        plan = RoundPlan(model_of, (LocalTraining(state.models, model_of, weights),))
        state = replace(state, models=trainer.train(state, plan)[0].models)
    return state.models
