"""Property inference by a client: does somebody train on examples with a property in this round?

Source: Kim et al., "Exploring Clustered Federated Learning's Vulnerability against Property Inference Attack", RAID
2023, Algorithm 3, after Melis et al. 2019, arXiv:1805.04049. The attacker sees what every client sees, the models
before and after each round. Their differences are the aggregated updates. It simulates such updates with and without
the property on examples of its own (`simulated.py`), and a random forest learns to tell their features (`pooling.py`)
apart (`forest.py`). In `active.py` it also sends updates of its own making.
"""

import logging
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shoal.attacks.simulated_updates import Auxiliary, aggregates, local_updates, schedule_of
from shoal.attacks.update_features import pooled
from shoal.core.errors import require
from shoal.core.settings import Count, Flag, Positive, settings
from shoal.data.federation import Federation
from shoal.engine import DivergenceError, RoundReport, State, Training

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class RoundObservation:
    """What the attacker made of a round, and what only a simulator knows of it.

    Args:
        round: whose updates these are.
        simulated: (S, F) float16, features of simulated aggregated updates.
        with_property: (S,) bool, which of them contain examples with the property.
        simulated_of: (S,) int64, the model that each was simulated for.
        seen: (A, F) float16, features of the round's aggregated updates.
        seen_of: (A,) int64, the model that each moved.
        present: (A,) bool, whether the victim trained that model on the property in this round.
        clients: (A,) int64, how many clients trained that model.
        cosine: (A,) float64, of the update with the one before of the same model; NaN where there was none.
    """

    round: int
    simulated: Tensor
    with_property: Tensor
    simulated_of: Tensor
    seen: Tensor
    seen_of: Tensor
    present: Tensor
    clients: Tensor
    cosine: Tensor


@settings
class PropertyAttack:
    """What the attacker does beside training.

    The paper states neither how much is simulated nor its random forest; for these two the defaults are those of the
    published codes.

    Args:
        visible_models: "all" models, as IFCA sends them to every client, here also in rounds in which it takes no part;
            or its "own", the one that it trains in the round.
        simulate_every: rounds from one simulation to the next.
        simulated_clients: local updates that are simulated of each kind, at least.
        simulated_updates: aggregated updates that are made of them, of each kind.
        aggregate_of: local updates in an aggregated one; "cluster": as many as other clients train a model on average,
            n // K - 1 of n clients in a round and at least one, which is all that a client can know (as the authors'
            code).
        property_fractions: shares of property in the simulated batches that contain it, in turn (Melis et al.'s code:
            1, 0.4, 0.6, 0.8).
        auxiliary: "attacker", what it trains on (the paper), or "attacker+test" (the published codes).
        match_labels: simulate on examples whose labels are in the same proportions with and without the property.
        remove_own_update: take the attacker's own part out of the update of the model that it trained, as the published
            codes do. It must know how many clients share that model; in the paper it does not.
        warm_up: rounds before the first that is attacked.
        forests: a "single" random forest for all models (the paper), or one "per-cluster".
        trees: of a random forest.

    Raises:
        InputError: a value outside its range.
    """

    visible_models: Literal["all", "own"] = "all"
    simulate_every: Positive = 1
    simulated_clients: Positive = 8
    simulated_updates: Positive = 8
    aggregate_of: Positive | Literal["cluster"] = "cluster"
    property_fractions: Annotated[tuple[Annotated[float, Field(gt=0, le=1, strict=True)], ...], Field(min_length=1)] = (
        1.0,
    )
    auxiliary: Literal["attacker", "attacker+test"] = "attacker"
    match_labels: Flag = False
    remove_own_update: Flag = False
    warm_up: Count = 0
    forests: Literal["single", "per-cluster"] = "single"
    trees: Positive = 100

    def examples(self, federation: Federation) -> Auxiliary:
        """What the attacker simulates with.

        Raises:
            InputError: nothing with the property, or nothing without it.
        """
        known = Auxiliary.own if self.auxiliary == "attacker" else Auxiliary.with_test
        found = known(federation, schedule_of(federation))
        require(
            len(found.held) > 0 and len(found.others) > 0,
            "a property attack needs examples with the property and without it; the attacker has "
            f"{len(found.held):,} and {len(found.others):,}",
        )
        if not self.match_labels:
            return found
        matched = found.matched()
        require(
            len(matched.held) > 0,
            "'match_labels' needs an attacker that has some label both with and without the property",
        )
        return matched

    def members(self, clients: int, models: int) -> int:
        """Local updates in a simulated aggregated update, of n clients in a round and K models."""
        return self.aggregate_of if self.aggregate_of != "cluster" else max(1, clients // models - 1)

    def watch(
        self, before: State, after: State, report: RoundReport, last: Tensor, auxiliary: Auxiliary, training: Training
    ) -> tuple[RoundObservation, Tensor]:
        """What is to be seen of a round; nothing is changed by looking.

        A model that nobody but the attacker trained is not attacked: it knows that update.

        Args:
            before: the federation before the round.
            after: the federation after it.
            report: of the round.
            last: (K, P), the last update of each model; zeros where there was none.
            auxiliary: what the attacker simulates with.
            training: that is watched.

        Returns:
            The observation, and the last updates (K, P) by now.
        """
        schedule = schedule_of(training.federation)
        ids, models = training.federation.ids[report.cohort], len(before.models)
        own = report.assignment[ids == schedule.attacker].tolist()
        visible = list(range(models)) if self.visible_models == "all" else own
        if after.round <= self.warm_up:
            visible = []
        others = torch.bincount(report.assignment[ids != schedule.attacker], minlength=models)
        attacked = [k for k in visible if others[k] > 0]
        updates = (after.models - before.models)[attacked]
        told = self._others_alone(before, after, report, training)[attacked] if self.remove_own_update else updates
        holder = report.assignment[ids == schedule.victim].tolist() if schedule.present(after.round) else []
        simulated = self._simulations(visible, before, auxiliary, training) if self._simulates(after.round) else {}
        each = self.simulated_updates
        observation = RoundObservation(
            round=after.round,
            simulated=torch.cat([pooled(training.engine.model.layout, updates[:0]), *simulated.values()]),
            with_property=(torch.arange(2 * each) < each).repeat(len(simulated)),
            simulated_of=torch.tensor(list(simulated), dtype=torch.int64).repeat_interleave(2 * each),
            seen=pooled(training.engine.model.layout, told),
            seen_of=torch.tensor(attacked, dtype=torch.int64),
            present=torch.tensor([k in holder for k in attacked], dtype=torch.bool),
            clients=torch.bincount(report.assignment, minlength=models)[attacked],
            cosine=_cosine(updates, last[attacked]),
        )
        last = last.clone()
        last[attacked] = updates
        return observation, last

    def _others_alone(self, before: State, after: State, report: RoundReport, training: Training) -> Tensor:
        """Updates (K, P) of the clients but the attacker."""
        updates = after.models - before.models
        for k, share, end in training.client_updates(before, report, schedule_of(training.federation).attacker):
            if share < 1:
                updates[k] = (updates[k] - share * (end - before.models[k])) / (1 - share)
        return updates

    def _simulates(self, number: int) -> bool:
        return (number - self.warm_up - 1) % self.simulate_every == 0

    def _simulations(
        self, models: list[int], before: State, auxiliary: Auxiliary, training: Training
    ) -> dict[int, Tensor]:
        """`_simulated` by model, without those for which it diverged: that must not end a training that goes well."""
        found = {}
        for k in models:
            try:
                found[k] = self._simulated(k, before, auxiliary, training)
            except DivergenceError:
                LOG.warning("round %d: simulated updates of model %d became NaN; left out", before.round + 1, k)
        return found

    def _simulated(self, k: int, before: State, auxiliary: Auxiliary, training: Training) -> Tensor:
        """Features of simulated aggregated updates of model k: with the property, then as many without."""
        stream = training.stream("property attack", before.round + 1, "model", k)
        local, federation = training.local.at(before.round + 1), training.federation
        # What others have the attacker does not know: a simulated client has as many examples as the attacker uses.
        own = int(federation.clients.sizes[federation.ids == schedule_of(federation).attacker])
        members = self.members(round(training.participation * len(federation)), len(before.models))
        mixes = [self.property_fractions[i % len(self.property_fractions)] for i in range(self.simulated_clients)]
        mixes += [0.0] * max(self.simulated_clients, members)
        updates = local_updates(
            before.models[k],
            auxiliary,
            mixes,
            size=min(own, local.batch(own) * local.steps_of(own)),
            local=local,
            engine=training.engine,
            stream=stream,
        )
        held, others = updates[: self.simulated_clients], updates[self.simulated_clients :]
        made = aggregates(held, others, members, self.simulated_updates, stream("aggregates"))
        return pooled(training.engine.model.layout, made)


def _cosine(updates: Tensor, last: Tensor) -> Tensor:
    """Of each update with the one before; (A, P) both -> (A,) float64."""
    known = (updates != 0).any(dim=1) & (last != 0).any(dim=1)
    return torch.where(known, functional.cosine_similarity(updates.double(), last.double(), dim=1), torch.nan)
