"""Property inference by a client, which detects the rounds where another client trains on examples with a property.

The attacker receives the models before and after each round. An aggregated update is the difference between a model
after and before a round. The attacker simulates aggregated updates with and without the property on its own examples
(`simulated_updates.py`). A random forest is trained on the simulated updates (`update_table.py`). An active attacker
also sends malicious updates (`active_attacker.py`).

Source: Kim et al., "Exploring Clustered Federated Learning's Vulnerability against Property Inference Attack", RAID
2023, Algorithm 3, after Melis et al. 2019, arXiv:1805.04049.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import pandas as pd
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shoal.algorithms.wrapper import with_bases
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Flag, Positive, settings
from shoal.data import Federation
from shoal.engine import Algorithm, DivergenceError, RoundReport, State, Tensors, Training, client_updates
from shoal.metrics.summary import Summary
from shoal.property.property_federation import schedule_of
from shoal.property.simulated_updates import Auxiliary, aggregated_updates, extract_features, local_updates
from shoal.property.update_table import PROPERTY_COLUMNS, RoundObservation, property_summary, updates_table

LOG = logging.getLogger(__name__)


@settings
class PropertyAttack:
    """A property attack on every round's aggregated updates, by a classifier trained on simulated updates.

    The defaults follow the published code, because the paper does not state the number of simulated updates or the
    settings of the random forest. Implements the protocol `shoal.simulation.simulation.RoundAttack`.

    Args:
        visible_models: the models that the attacker receives: "all" models (as in IFCA) or only its "own" model.
        simulate_every: the number of rounds between the attacker's simulations of updates.
        simulated_clients: the number of simulated local updates with the property per model. The number without the
            property is the larger of ``simulated_clients`` and three times ``aggregate_of``.
        simulated_updates: the number of simulated aggregated updates per model and class (with and without the
            property).
        aggregate_of: the number of local updates per simulated aggregated update. "cluster" means max(1, n // K - 1)
            for n clients per round and K models (authors' code).
        property_fractions: the fractions of examples with the property at simulated clients that hold such examples.
            The clients use the fractions in turn (Melis et al.'s code: 1, 0.4, 0.6, 0.8).
        auxiliary: the examples for simulating updates: "attacker" uses the attacker's training examples (the paper),
            and "attacker+test" adds the test examples (the authors' code).
        match_labels: whether simulated clients use equally many examples with and without the property for every label.
        remove_own_update: whether the attacker subtracts its own contribution from the aggregated update, as in the
            authors' code. The subtraction assumes that the attacker knows how many clients trained the model.
        warm_up: the number of rounds before the first attacked round.
        forests: the attack's random forests: a "single" forest for all models (the paper), or one forest "per-cluster".
        trees: the number of trees per random forest.
        tsne: whether to compute t-SNE maps of the updates after the last round.

    Example:
        >>> import shoal
        >>> shoal.PropertyAttack().aggregate_size(clients=10, models=2)
        4
        >>> shoal.PropertyAttack(aggregate_of=3).aggregate_size(clients=10, models=2)
        3
    """

    name: ClassVar[str] = "property"
    columns: ClassVar[tuple[str, ...]] = PROPERTY_COLUMNS

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
    tsne: Flag = True

    def check(self, federation: Federation, algorithm: Algorithm) -> None:
        """Check that the attacker has examples for simulation, and that the algorithm averages updates.

        Raises:
            InputError: the attacker has no suitable examples, or the algorithm does not average updates.
        """
        self.auxiliary_examples(federation)
        otherwise = [part for part in with_bases(algorithm) if not getattr(part, "moves_by_average", True)]
        require(
            not otherwise,
            "a property attack needs an algorithm that averages updates "
            f"(got {', '.join(type(part).__name__ for part in otherwise)}); choose another algorithm",
        )

    def auxiliary_examples(self, federation: Federation) -> Auxiliary:
        """Return the examples that the attacker uses for simulation.

        Raises:
            InputError: there is no example with the property, or no example without the property.
        """
        collect = Auxiliary.from_attacker if self.auxiliary == "attacker" else Auxiliary.from_attacker_and_test
        examples = collect(federation)
        require(
            len(examples.with_property) > 0 and len(examples.without_property) > 0,
            "the attacker needs examples with the property and examples without the property "
            f"(got {len(examples.with_property):,} and {len(examples.without_property):,})",
        )
        if not self.match_labels:
            return examples
        matched = examples.matched()
        require(
            len(matched.with_property) > 0,
            "'match_labels' needs a label for which the attacker has examples with and without the property",
        )
        return matched

    def aggregate_size(self, clients: int, models: int) -> int:
        """Return the number of local updates per simulated aggregated update."""
        return max(1, clients // models - 1) if self.aggregate_of == "cluster" else self.aggregate_of

    def initial_memory(self, state: State) -> Tensors:
        """Return zeros (K, P) as the models' updates before the first round."""
        return {"updates": torch.zeros_like(state.models)}

    def observe(
        self, before: State, after: State, report: RoundReport, memory: Tensors, training: Training
    ) -> tuple[Tensors, Tensors]:
        """Observe a round and simulate updates; return the tensors of a `RoundObservation`, and the models' updates.

        The attack skips models that only the attacker trained, and rounds that changed the number of models.
        """
        schedule = schedule_of(training.federation)
        ids, models = training.federation.ids[report.cohort], len(before.models)
        visible = list(range(models))
        if self.visible_models == "own":
            visible = report.assignment[ids == schedule.attacker].tolist()
        # After a change of their number, models have no predecessor.
        changed = len(after.models) != models
        last = memory["updates"] if len(memory["updates"]) == models else torch.zeros_like(before.models)
        if after.round <= self.warm_up or changed:
            visible = []
        trained = torch.bincount(report.assignment[ids != schedule.attacker], minlength=models)
        attacked = [k for k in visible if trained[k] > 0]
        moved = torch.zeros_like(before.models) if changed else after.models - before.models
        updates = moved[attacked]
        if self.remove_own_update and attacked:
            for k, share, part in client_updates(training, before, report, schedule.attacker):
                # Without rescaling, since features do not depend on the length of an update.
                moved[k] = moved[k] - share * part
        of_victim = report.assignment[ids == schedule.victim].tolist() if schedule.present(after.round) else []
        swapped = self._swapped(attacked, moved, before, report, training) if attacked else {}
        counterfactual = torch.cat([updates[:0], *(update[None] for update in swapped.values())])
        simulated = self._simulated(visible, before, training)
        count, layout = self.simulated_updates, training.engine.model.layout
        observation = RoundObservation(
            round=after.round,
            simulated_features=torch.cat([extract_features(layout, updates[:0]), *simulated.values()]),
            simulated_has_property=(torch.arange(2 * count) < count).repeat(len(simulated)),
            simulated_clusters=torch.tensor(list(simulated), dtype=torch.int64).repeat_interleave(2 * count),
            features=extract_features(layout, moved[attacked]),
            clusters=torch.tensor(attacked, dtype=torch.int64),
            has_property=torch.tensor([k in of_victim for k in attacked], dtype=torch.bool),
            clients=torch.bincount(report.assignment, minlength=models)[attacked],
            swapped=torch.tensor([attacked.index(k) for k in swapped], dtype=torch.int64),
            swapped_features=extract_features(layout, counterfactual),
            cosine=_cosine(updates, last[attacked]),
        )
        last = last.clone()
        last[attacked] = updates
        return {name: value for name, value in vars(observation).items() if name != "round"}, {"updates": last}

    def measure(
        self, observations: Mapping[int, Tensors], stream: Stream, *, jobs: int
    ) -> tuple[Summary, pd.DataFrame]:
        """Return the metrics of `property_summary`, and the rows of `property.csv`."""
        seen = [RoundObservation(round=number, **tensors) for number, tensors in observations.items()]
        random = stream("property attack")
        updates = updates_table(seen, random, forests=self.forests, trees=self.trees, maps=self.tsne, jobs=jobs)
        return property_summary(updates), updates

    def _swapped(
        self, attacked: list[int], moved: Tensor, before: State, report: RoundReport, training: Training
    ) -> dict[int, Tensor]:
        """Return, by model, the counterfactual updates (P,) of attacked models that the victim trained.

        The victim trains the same model on its other examples, with the same weight and a new batch and noise.
        """
        schedule, federation = schedule_of(training.federation), training.federation
        examples = schedule.swap_records(federation.clients, federation.ids, before.round + 1)
        updates: dict[int, Tensor] = {}
        for k, share, part in client_updates(training, before, report, schedule.victim):
            if k in attacked:
                updates[k] = updates.get(k, moved[k]) - share * part
        if updates:
            for k, share, part in client_updates(training, before, report, schedule.victim, examples):
                if k in updates:
                    updates[k] = updates[k] + share * part
        return updates

    def _simulated(self, clusters: list[int], before: State, training: Training) -> dict[int, Tensor]:
        """Return the features of simulated updates, by cluster; empty in rounds without a simulation."""
        if (before.round - self.warm_up) % self.simulate_every or not clusters:
            return {}
        features, auxiliary = {}, self.auxiliary_examples(training.federation)
        for k in clusters:
            # A diverging simulation must not end the observed training.
            try:
                features[k] = self._simulated_features(k, before, auxiliary, training)
            except DivergenceError:
                LOG.warning("round %d: simulated updates of model %d became NaN and are left out", before.round + 1, k)
        return features

    def _simulated_features(self, k: int, before: State, auxiliary: Auxiliary, training: Training) -> Tensor:
        """Return the features of model k's simulated aggregated updates, first with and then without the property."""
        stream = training.stream("property attack", before.round + 1, "model", k)
        local, federation = training.local_of(before, k), training.federation
        # The attacker only knows its own number of examples.
        examples = int(federation.clients.sizes[federation.ids == schedule_of(federation).attacker])
        size = self.aggregate_size(federation.cohort_size(training.participation), len(before.models))
        held = self.simulated_clients
        fractions = [self.property_fractions[i % len(self.property_fractions)] for i in range(held)]
        updates = local_updates(
            before.models[k],
            auxiliary,
            fractions + [0.0] * max(held, 3 * size),
            size=min(examples, local.batch(examples) * local.steps_of(examples)),
            local=local,
            engine=training.engine,
            stream=stream,
        )
        made = aggregated_updates(updates[:held], updates[held:], size, self.simulated_updates, stream("aggregates"))
        return extract_features(training.engine.model.layout, made)


def _cosine(updates: Tensor, last: Tensor) -> Tensor:
    """Return each update's cosine (A,) float64 with the previous update (A, P); NaN if one of them is zero."""
    moved = (updates != 0).any(dim=1) & (last != 0).any(dim=1)
    return torch.where(moved, functional.cosine_similarity(updates.double(), last.double(), dim=1), torch.nan)
