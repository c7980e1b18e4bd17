"""Reference federations that had a client until it left, and reference federations that never had the client.

All reference federations start from the run's first models, and keep the run's other clients, events, forgetting
method, recorded risks and recorded directives. Cohorts, batches and noise are drawn anew.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from shoal.attacks import Candidates, ModelJoint, ModelSpan
from shoal.attacks.queries.augmented_queries import mean_confidence
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.data import GroupedExamples
from shoal.data.shards import gather
from shoal.data.swap_pairs import PairedRecords, pair_records
from shoal.engine import Departure, DeployedModels, Engine, State, Training
from shoal.metrics.intervals import Floats
from shoal.replay.reference_federations import (
    POPULATION,
    SNAPSHOTS,
    AttackedRun,
    FederationScores,
    confidence,
    population_of,
)
from shoal.replay.span_scores import knowledge_of
from shoal.replay.stages import recorded_rules
from shoal.simulation.distillation import apply_release
from shoal.simulation.play import SimulationState, initial_state
from shoal.simulation.simulation import Simulation


@dataclass(frozen=True, eq=False)
class LeaverRun:
    """A run that a client left.

    Args:
        progress: the simulation's state after the last round.
        state: the state after the last round, with the released models.
        leaver: the position of the client that left.
        records: Q pairs, each of a training example of the client that left and a held-out example.
        population: Z examples that no client trained on.
    """

    simulation: Simulation
    progress: SimulationState
    state: State
    leaver: int
    records: PairedRecords
    population: GroupedExamples
    queries: ClassVar[int] = 1

    @staticmethod
    def from_run(simulation: Simulation, progress: SimulationState, client: str, engine: Engine) -> "LeaverRun":
        """Return the audit of a client, by name or number, in a finished simulation.

        Raises:
            InputError: the client is unknown, did not leave, was the only client in a round or has too few pairs; or
                clients have personal models.
        """
        federation, presence, last = simulation.federation, simulation.presence, simulation.last_round
        position = federation.positions([client])
        leaver, names = int(position), federation.names or federation.ids.tolist()
        gone = [] if presence is None else torch.nonzero(presence.last < last).flatten().tolist()
        hint = f"name one of {[names[i] for i in gone[:10]]}" if gone else "audit a run that a client left"
        require(leaver in gone, f"--left: client '{client}' did not leave the run; {hint}")
        assert presence is not None
        for number in (1, *(event.round for event in simulation.events)):
            some = len(presence.without(position).present(number)) > 0
            require(some, f"--left: client '{client}' was the only client of round {number}; name another client")
        training, rest = simulation.on(engine), presence.present(last)
        state = apply_release(simulation.release, training, progress.state)
        shared = training.take(rest).deployed_models(state.take(rest))[0].models is state.models
        require(shared, "--left: the clients have personal models; audit a run with shared models")
        stream = Stream(simulation.seed)("audit", "records")
        records = pair_records(federation.take(position), stream, simulation.duplicates)
        require(len(records) > 1, f"--left: client '{client}' needs two training examples with held-out partners")
        return LeaverRun(simulation, progress, state, leaver, records, population_of(simulation))

    def others(self, engine: Engine) -> AttackedRun | None:
        """Return the attack on the remaining clients, with the score before the departure as the trajectory.

        The result is None without attackable records.
        """
        if self.departure is None:
            return None
        try:
            run = AttackedRun.from_run(self.simulation, self.state, self.progress.rows, engine)
        except InputError:
            return None
        stays = torch.isin(run.records.client[: len(run.records)], self.staying)
        run = replace(run, records=run.records.take(stays), snapshots=(self.round - 1,))
        return run if len(run.records) else None

    @property
    def round(self) -> int:
        """The first round without the client that left."""
        assert self.simulation.presence is not None
        return int(self.simulation.presence.last[self.leaver]) + 1

    @property
    def departure(self) -> Departure | None:
        """The recorded departure of the client, or None if the client never trained."""
        return next((each for each in self.progress.departures if self.leaver in each.clients.tolist()), None)

    def scores(self, engine: Engine) -> FederationScores:
        """Return the scores of the run's final models."""
        return self._scores([self.state.models], engine, member=True)

    def train_reference(self, number: int, engine: Engine, *, spans: object = ()) -> FederationScores:
        """Train reference federation ``number`` and score the records. Reference federations with even numbers had the
        client.

        One model scores all records: the cluster model with the highest mean confidence on the records.

        Returns:
            The scores of the records: ``score`` has the scores by the final model. ``trajectory`` (2, 2 Q) has the mean
            score over at most `SNAPSHOTS` + 1 rounds after the departure, and the score before the departure.
            ``population`` (3, Z) has the population's scores by the final model, on average after the departure, and
            before the departure.
        """
        del spans
        simulation, member, last = self.simulation, number % 2 == 0, self.simulation.last_round
        risks, directives = recorded_rules(simulation, self.progress.rows)
        training, state = simulation.on(engine), initial_state(simulation, engine).state
        assert training.presence is not None
        presence = training.presence if member else training.presence.without(torch.tensor([self.leaver]))
        drawn = {"stream": Stream(simulation.seed)("audit", "leaver")(number), "first_state": state, "record_every": 0}
        training = replace(training, risk_estimator=risks, coordinator=directives, presence=presence, **drawn)
        taken, seen = {ceil(r) for r in np.linspace(self.round - 1, last, SNAPSHOTS + 1)[1:]}, list[Tensor]()
        before = state
        for after, report in training.rounds(state, last):
            if after.round == self.round:
                before = state
                seen.append(state.models if report.departure is None else report.departure.after)
            state = after if after.round < last else apply_release(simulation.release, training, after)
            if state.round in taken:
                seen.append(state.models)
        return self._scores([before.models, *seen], engine, member=member)

    def _scores(self, seen: Sequence[Tensor], engine: Engine, *, member: bool) -> FederationScores:
        """Return the last models' scores, the mean over all models after the first, and the first models' scores."""
        x, labels, size = self.population.x, self.population.y.cpu(), 2 * len(self.records)
        rows, columns = torch.arange(len(x), device=x.device), list[Tensor]()
        for models in seen:
            best, score = self._best(models, engine)
            z = mean_confidence(engine, models[best], x, labels, rows, 1) if len(x) else score[:0]
            columns.append(torch.cat([score, z]))
        parts = torch.stack([columns[-1], torch.stack(columns[1:] or columns).mean(dim=0), columns[0]])
        trained = (torch.arange(size) < len(self.records)) & member
        # Here no client chooses a model, so ``model`` is empty.
        return FederationScores(parts[0, :size], trained, torch.empty(0), parts[:, size:], parts[1:, :size])

    def _best(self, models: Tensor, engine: Engine) -> tuple[int, Tensor]:
        """Return the number of the model with the highest mean confidence, and its confidences (2 Q,)."""
        scores = torch.stack([confidence(model, self.records, engine) for model in models])
        best = int(scores.mean(dim=1).argmax())
        return best, scores[best]

    def pair_scores(self, engine: Engine) -> dict[str, Floats]:
        """Return the scores (2 Q,) of an attacker with the models before and after the departure, by attack.

        The models after the departure are the forgetting method's models, or the final models if the method changed
        nothing. The attack ``drop`` scores the decrease of the confidence. ``span-pair`` and ``joint-pair`` treat the
        difference of the models as the client's update, if the network has a dense layer. Without two comparable
        models, the result is empty.
        """
        departure = self.departure
        if departure is None:
            return {}
        before, after = departure.before, departure.after
        after = self.state.models if before.equal(after) else after
        if before.shape != after.shape:
            return {}
        best, score = self._best(before, engine)
        found = {"drop": (score - confidence(after[best], self.records, engine)).numpy()}
        # The difference from the model without the client to the model with it counts as the client's update.
        moves, client = torch.stack([after[best], before[best]])[:, None], self.simulation.federation.ids[[self.leaver]]
        known = replace(knowledge_of(self.simulation.on(engine), self.state), server=None, pooling=0.0)
        listed, merged = self._listed(client), [(client, torch.ones(1, 1))]
        attacks: dict[str, Callable[[], Floats]] = {
            "span-pair": lambda: ModelSpan().score(moves, listed, engine).score[0],
            "joint-pair": lambda: ModelJoint().score(moves, merged, listed, engine, known)[0],
        }
        for name, attack in attacks.items():
            with suppress(InputError):
                found[name] = attack()[: len(score)]
        return {name: values for name, values in found.items() if np.isfinite(values).all()}

    def _listed(self, client: Tensor) -> Candidates:
        """Return the joint attack's candidates: the 2 Q records, the client's unpaired examples, and at most
        `POPULATION` examples of other clients. All candidates count as those of ``client`` (1,).
        """
        shards, z, stream = self.simulation.federation.clients, self.population, Stream(self.simulation.seed)("audit")
        own, others = (shards.indices[of] for of in (shards.owners() == self.leaver, shards.owners() != self.leaver))
        drawn = others[torch.randperm(len(others), generator=stream("listed").generator())[:POPULATION]]
        rows = torch.cat([self.records.rows, own[~torch.isin(own, self.records.rows)], drawn])
        both, place, size = self.records.federation.clients, rows.to(shards.y.device), shards.sizes[[self.leaver]]
        return Candidates(
            gather(both.x, place), z.x if len(z) else None, y=both.y[place].cpu(), known_y=z.y.cpu(),
            client=client.expand(len(rows)), examples=size.expand(len(rows)),
        )  # fmt: skip

    @property
    def staying(self) -> Tensor:
        """The positions of the clients that trained before the departure and stay to the end, (n,)."""
        assert self.simulation.presence is not None
        there, last = map(self.simulation.presence.present, (max(1, self.round - 1), self.simulation.last_round))
        return there[torch.isin(there, last)]

    def deployed_models(self, engine: Engine) -> tuple[Training, list[DeployedModels]]:
        """Return the training of the remaining clients, and the models in use before the departure and at the end.

        Clients choose from the models by the rule and risks of the last round. The list of models is empty if the
        number of models changed or the client never trained.
        """
        departure, rest = self.departure, self.staying
        training, state = self.simulation.on(engine).take(rest), self.state.take(rest)
        if departure is None or departure.before.shape != state.models.shape:
            return training, []
        return training, [training.deployed_models(now)[0] for now in (replace(state, models=departure.before), state)]
