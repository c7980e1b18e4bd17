"""Property inference by a client: in which rounds does another client train on examples with a property?

Source: Kim et al., "Exploring Clustered Federated Learning's Vulnerability against Property Inference Attack", RAID
2023, Algorithm 3, after Melis et al. 2019, arXiv:1805.04049. The attacker receives what every client receives, the
models before and after each round; their differences are the aggregated updates. It simulates such updates with and
without the property on examples of its own (`simulated_updates.py`), and a random forest learns to classify their
features (`update_features.py`, `property_classifier.py`). An active attacker also sends malicious updates
(`active_property.py`).
"""

import logging
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shoal.core.errors import require
from shoal.core.settings import Count, Flag, Positive, settings
from shoal.data.federation import Federation
from shoal.engine import DivergenceError, RoundReport, State, Training, client_updates
from shoal.property.round_observation import RoundObservation
from shoal.property.simulated_updates import Auxiliary, aggregated_updates, local_updates, schedule_of
from shoal.property.update_features import extract_features

LOG = logging.getLogger(__name__)


@settings
class PropertyAttack:
    """Simulates updates in a round, and observes the aggregated updates; it changes nothing.

    The paper states neither how much is simulated nor the settings of its random forest; for these, the defaults are
    those of the published codes.

    Args:
        visible_models: "all", which IFCA sends to every client, here also in rounds in which the attacker takes no
            part; or its "own", the model that it trains in the round.
        simulate_every: rounds from one simulation to the next.
        simulated_clients: simulated local updates of each kind, with and without the property, per model; without it at
            least three times as many as an aggregated update is made of, so that these are not all of the same ones.
        simulated_updates: aggregated updates made of these, of each kind, per model.
        aggregate_of: local updates per simulated aggregated update; "cluster": as many as other clients train a model
            on average, n // K - 1 of n clients in a round and at least one, which is all that a client can know (the
            authors' code).
        property_fractions: fractions of the examples that have the property, in the simulated clients that have it, in
            turn (Melis et al.'s code: 1, 0.4, 0.6, 0.8).
        auxiliary: examples to simulate with: those that the "attacker" trains on (the paper), or "attacker+test" (the
            published codes).
        match_labels: simulate on as many examples of each label with the property as without it.
        remove_own_update: subtract the attacker's own contribution from the update of the model that it trained, as the
            published codes do. It must know how many clients share that model, which the paper does not say that it
            does; in FL it knows.
        warm_up: rounds before the first that is attacked.
        forests: a "single" random forest for all models (the paper), or one "per-cluster".
        trees: of a random forest.

    Source: Kim et al., "Exploring Clustered Federated Learning's Vulnerability against Property Inference Attack", RAID
    2023, Algorithm 3, after Melis et al. 2019, arXiv:1805.04049.

    Example:
        >>> import shoal
        >>> shoal.PropertyAttack().aggregate_size(clients=10, models=2)
        4
        >>> shoal.PropertyAttack(aggregate_of=3).aggregate_size(clients=10, models=2)
        3
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
    remove_own_update: Flag = True
    warm_up: Count = 0
    forests: Literal["single", "per-cluster"] = "single"
    trees: Positive = 100

    def auxiliary_examples(self, federation: Federation) -> Auxiliary:
        """The examples that the attacker simulates with.

        Raises:
            InputError: there are none with the property, or none without it.
        """
        collect = Auxiliary.of_attacker if self.auxiliary == "attacker" else Auxiliary.of_attacker_and_test
        examples = collect(federation)
        require(
            len(examples.with_property) > 0 and len(examples.without_property) > 0,
            "a property attack needs examples with the property and without it; the attacker has "
            f"{len(examples.with_property):,} and {len(examples.without_property):,}",
        )
        if not self.match_labels:
            return examples
        matched = examples.matched()
        require(
            len(matched.with_property) > 0,
            "'match_labels' needs an attacker that has some label both with and without the property",
        )
        return matched

    def aggregate_size(self, clients: int, models: int) -> int:
        """Local updates per simulated aggregated update, with n clients in a round and K models."""
        return max(1, clients // models - 1) if self.aggregate_of == "cluster" else self.aggregate_of

    def observe(
        self, before: State, after: State, report: RoundReport, last: Tensor, auxiliary: Auxiliary, training: Training
    ) -> tuple[RoundObservation, Tensor]:
        """Observe a round, and simulate updates for it.

        A model that nobody but the attacker trained is not attacked: it knows that update. Nor is any in a round in
        which the number of models changed.

        Args:
            before, after: the states before and after the round.
            report: of the round.
            last: (K, P), the previous update of each model; zeros where there was none.
            auxiliary: the examples to simulate with.
            training: that is observed.

        Returns:
            The observation, and ``last`` for the next round.
        """
        schedule = schedule_of(training.federation)
        ids, models = training.federation.ids[report.cohort], len(before.models)
        visible = list(range(models))
        if self.visible_models == "own":
            visible = report.assignment[ids == schedule.attacker].tolist()
        # Where the algorithm changed the number of models in this round, none of them is one of before.
        changed = len(after.models) != models
        last = last if len(last) == models else torch.zeros_like(before.models)
        if after.round <= self.warm_up or changed:
            visible = []
        trained = torch.bincount(report.assignment[ids != schedule.attacker], minlength=models)
        attacked = [k for k in visible if trained[k] > 0]
        moved = torch.zeros_like(before.models) if changed else after.models - before.models
        updates = moved[attacked]
        if self.remove_own_update and attacked:
            for k, share, own in client_updates(training, before, report, schedule.attacker):
                # Not divided by what is left of the weights: features do not depend on the length of an update.
                moved[k] = moved[k] - share * own
        of_victim = report.assignment[ids == schedule.victim].tolist() if schedule.present(after.round) else []
        swapped = self._swapped(attacked, moved, before, report, training) if attacked else {}
        others = torch.cat([updates[:0], *(update[None] for update in swapped.values())])
        simulated = self._simulated(visible, before, auxiliary, training)
        each, layout = self.simulated_updates, training.engine.model.layout
        observation = RoundObservation(
            round=after.round,
            simulated_features=torch.cat([extract_features(layout, updates[:0]), *simulated.values()]),
            simulated_has_property=(torch.arange(2 * each) < each).repeat(len(simulated)),
            simulated_clusters=torch.tensor(list(simulated), dtype=torch.int64).repeat_interleave(2 * each),
            features=extract_features(layout, moved[attacked]),
            clusters=torch.tensor(attacked, dtype=torch.int64),
            has_property=torch.tensor([k in of_victim for k in attacked], dtype=torch.bool),
            clients=torch.bincount(report.assignment, minlength=models)[attacked],
            swapped=torch.tensor([attacked.index(k) for k in swapped], dtype=torch.int64),
            swapped_features=extract_features(layout, others),
            cosine=_cosine(updates, last[attacked]),
        )
        last = last.clone()
        last[attacked] = updates
        return observation, last

    def _swapped(
        self, attacked: list[int], moved: Tensor, before: State, report: RoundReport, training: Training
    ) -> dict[int, Tensor]:
        """The update (P,) of each attacked model that the victim trained, had it trained on its other examples.

        The victim keeps its model and its weight; its batch and its noise are others, as in any other round.
        """
        schedule, federation = schedule_of(training.federation), training.federation
        examples = schedule.swapped(federation.clients, federation.ids, before.round + 1)
        updates: dict[int, Tensor] = {}
        for k, share, part in client_updates(training, before, report, schedule.victim):
            if k in attacked:
                updates[k] = updates.get(k, moved[k]) - share * part
        if updates:
            for k, share, part in client_updates(training, before, report, schedule.victim, examples):
                if k in updates:
                    updates[k] = updates[k] + share * part
        return updates

    def _simulated(
        self, clusters: list[int], before: State, auxiliary: Auxiliary, training: Training
    ) -> dict[int, Tensor]:
        """`_simulated_features` by cluster, in a round in which there are any."""
        features = {}
        for k in clusters if (before.round - self.warm_up) % self.simulate_every == 0 else ():
            # What diverges is left out: it must not end the training observed.
            try:
                features[k] = self._simulated_features(k, before, auxiliary, training)
            except DivergenceError:
                LOG.warning("round %d: simulated updates of model %d became NaN; left out", before.round + 1, k)
        return features

    def _simulated_features(self, k: int, before: State, auxiliary: Auxiliary, training: Training) -> Tensor:
        """Features of simulated aggregated updates of model k: with the property, then as many without it."""
        stream = training.stream("property attack", before.round + 1, "model", k)
        local, federation = training.local_of(before, k), training.federation
        # The attacker does not know how many examples others have: a simulated client has as many as it trains on.
        own = int(federation.clients.sizes[federation.ids == schedule_of(federation).attacker])
        size = self.aggregate_size(round(training.participation * len(federation)), len(before.models))
        fractions = [self.property_fractions[i % len(self.property_fractions)] for i in range(self.simulated_clients)]
        updates = local_updates(
            before.models[k],
            auxiliary,
            fractions + [0.0] * max(self.simulated_clients, 3 * size),
            size=min(own, local.batch(own) * local.steps_of(own)),
            local=local,
            engine=training.engine,
            stream=stream,
        )
        made = aggregated_updates(
            updates[: self.simulated_clients],
            updates[self.simulated_clients :],
            size,
            self.simulated_updates,
            stream("aggregates"),
        )
        return extract_features(training.engine.model.layout, made)


def _cosine(updates: Tensor, last: Tensor) -> Tensor:
    """Cosine (A,) float64 of each update (A, P) with the previous one; NaN where either is zero."""
    known = (updates != 0).any(dim=1) & (last != 0).any(dim=1)
    return torch.where(known, functional.cosine_similarity(updates.double(), last.double(), dim=1), torch.nan)
