"""Federations that had a client until it left, and federations that never had it; and the pair of models around it.

Both kinds begin at the run's first models, have its other clients and events, its forgetting method, and the risks and
directives that it recorded. Cohorts, batches and noise are drawn anew.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from shoal.attacks import Candidates, ModelSpan
from shoal.attacks.queries.augmented_queries import mean_confidence
from shoal.audit.record_table import RecordTable, measure
from shoal.control import RecordedDirectives
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.data import GroupedExamples
from shoal.data.shards import gather
from shoal.data.swap_pairs import OTHER_CLIENTS, PairedRecords, pair_records
from shoal.engine import Departure, Engine, State
from shoal.metrics.intervals import Estimate
from shoal.replay.reference_federations import POPULATION, SNAPSHOTS, FederationScores
from shoal.replay.stages import RecordedRisks, recorded_rules
from shoal.simulation.baselines import GroupValues, group_values
from shoal.simulation.distillation import apply_release
from shoal.simulation.play import SimulationState, initial_state
from shoal.simulation.simulation import Simulation


@dataclass(frozen=True, eq=False)
class LeaverRun:
    """A run that a client left, and the leaver's records that are asked about.

    Args:
        simulation: with its data where the engine wants them.
        state: after its last round, with the models as they are released.
        leaver: the client's position.
        records: Q pairs of one of its training examples and a held-out example.
        population: Z examples that nobody trained on.
        risks, directives: as of `AttackedRun`.
        departure: None where the client never took part.
    """

    simulation: Simulation
    state: State
    leaver: int
    records: PairedRecords
    population: GroupedExamples
    risks: RecordedRisks
    directives: RecordedDirectives | None
    departure: Departure | None
    queries: ClassVar[int] = 1

    @staticmethod
    def from_run(simulation: Simulation, progress: SimulationState, client: str, engine: Engine) -> "LeaverRun":
        """The audit of a client of a finished simulation, by its name or number.

        Raises:
            InputError: a client that is unknown, that stays to the end, or that was alone; clients with models of their
                own; or fewer than two pairs.
        """
        federation, presence, last = simulation.federation, simulation.presence, simulation.last_round
        (leaver,) = federation.positions([client]).tolist()
        gone = [] if presence is None else torch.nonzero(presence.last < last).flatten().tolist()
        names = federation.names or federation.ids.tolist()
        left = ", ".join(f"'{names[i]}'" for i in gone[:10])
        hint = f"name a client that left: {left}" if gone else "no client left this run (docs/leaving.md)"
        require(leaver in gone, f"--left: client '{client}' is still in the federation; {hint}")
        assert presence is not None
        without = presence.without(torch.tensor([leaver]))
        rounds = {1, *(event.round for event in simulation.events)}
        empty = [number for number in sorted(rounds) if not len(without.present(number))]
        require(not empty, f"--left: without client '{client}' nobody is there in round {[*empty, 1][0]}")
        training = simulation.on(engine)
        state, rest = apply_release(simulation.release, training, progress.state), training.present(last)
        deployed, _ = training.take(rest).deployed(state.take(rest))
        require(
            deployed.models is state.models,
            "--left: each client has a model of its own, and the leaver's is gone with it; audit a run whose clients "
            "share models",
        )
        stream, shadow = Stream(simulation.seed)("audit"), federation.shadow
        drawn = torch.randperm(len(shadow), generator=stream("population").generator())[:POPULATION]
        records = pair_records(federation.take(torch.tensor([leaver])), stream("records"), simulation.duplicates)
        require(len(records) >= 2, f"--left: two examples of client '{client}' with a test example are needed; got 1")
        departures = [departure for departure in progress.departures if leaver in departure.clients.tolist()]
        risks, directives = recorded_rules(simulation, progress.rows)
        return LeaverRun(
            simulation=simulation,
            state=state,
            leaver=leaver,
            records=records,
            population=shadow.take(drawn.to(shadow.y.device)),
            risks=risks,
            directives=directives,
            departure=departures[0] if departures else None,
        )

    @property
    def round(self) -> int:
        """The first round without the client."""
        assert self.simulation.presence is not None
        return int(self.simulation.presence.last[self.leaver]) + 1

    @property
    def notes(self) -> list[str]:
        """What must be known of the records, in sentences without a full stop."""
        own = self.simulation.federation.own_inputs and self.records.within == "group"
        return [OTHER_CLIENTS] if own else []

    def scores(self, engine: Engine) -> FederationScores:
        """The scores of the run's final models; a client's view of the rounds would take the run trained again."""
        return self._scores([self.state.models], engine, member=True)

    def train_reference(self, number: int, engine: Engine, *, spans: object = ()) -> FederationScores:
        """Train federation ``number`` and score the records; those of even numbers had the client.

        Records are scored by one model per round, the one of the highest mean confidence on all of them: the client is
        nobody's member any more, and clusters have other numbers in other federations.

        Returns:
            ``score`` of the final model; one row of ``trajectory``, the mean over at most `SNAPSHOTS` rounds and the
            models that were sent in the first round without the client; ``population`` (2, Z) of the same two.
        """
        del spans
        simulation, member = self.simulation, number % 2 == 0
        first = initial_state(simulation, engine).state
        training = replace(
            simulation.on(engine),
            stream=Stream(simulation.seed)("audit")("leaver", number),
            risk_estimator=self.risks,
            coordinator=self.directives,
            first_state=first,
            record_every=0,
        )
        if not member:
            assert training.presence is not None
            training = replace(training, presence=training.presence.without(torch.tensor([self.leaver])))
        state, last, seen = first, simulation.last_round, list[Tensor]()
        taken = {ceil(after) for after in np.linspace(self.round - 1, last, SNAPSHOTS + 1)[1:]}
        for after, report in training.rounds(first, last):
            if after.round == self.round:
                seen.append(state.models if report.departure is None else report.departure.after)
            state = after if after.round < last else apply_release(simulation.release, training, after)
            if state.round in taken:
                seen.append(state.models)
        return self._scores(seen, engine, member=member)

    def _scores(self, seen: list[Tensor], engine: Engine, *, member: bool) -> FederationScores:
        """The scores of the last of the models (K, P) that were ``seen``, and the mean over all of them."""
        of_rounds = [self._by_best(models, engine) for models in seen]
        score, population = of_rounds[-1][1:]
        means = [torch.stack(column).mean(dim=0) for column in zip(*(part[1:] for part in of_rounds), strict=True)]
        return FederationScores(
            score=score,
            member=(torch.arange(len(score)) < len(self.records)) & member,
            model=torch.tensor([of_rounds[-1][0]]),
            population=torch.stack([population, means[1]]),
            trajectory=means[0][None],
        )

    def _by_best(self, models: Tensor, engine: Engine) -> tuple[int, Tensor, Tensor]:
        """The model of the highest mean confidence on the records, and its confidence on these and the population."""
        scores = torch.stack([self._confidence(model, engine) for model in models])
        best, x = int(scores.mean(dim=1).argmax()), self.population.x
        rows, labels = torch.arange(len(x), device=x.device), self.population.y.cpu()
        of_population = mean_confidence(engine, models[best], x, labels, rows, 1) if len(x) else scores.new_empty(0)
        return best, scores[best], of_population

    def _confidence(self, model: Tensor, engine: Engine) -> Tensor:
        """(2 Q,)."""
        x, everyone = self.records.federation.clients.x, torch.arange(2 * len(self.records))
        return mean_confidence(engine, model, x, self.records.labels, self.records.rows_on_device(everyone), 1)

    def attacks_on_pair(self, engine: Engine) -> dict[str, Estimate]:
        """The AUC of the attacks of whoever kept the models before the client left, by their names.

        The second model is the one that forgetting gave; where it changed nothing, the final one. ``drop`` is the
        confidence that was lost, ``span-pair`` the span attack on the difference. Members are the client's training
        examples, non-members the held-out ones of their pairs. Empty where the client never took part, or where the
        number of models changed.
        """
        before, after = self.around
        if before is None or after is None:
            return {}
        best, score, _ = self._by_best(before, engine)
        scores = {"drop": (score - self._confidence(after[best], engine)).numpy()}
        try:
            # From the model without the client to the one with it: its records are what was trained on between them.
            found = ModelSpan().score(torch.stack([after[best], before[best]])[:, None], self._candidates(), engine)
            scores["span-pair"] = found.score[0]
        except InputError:
            # No dense layer, or the models are the same.
            pass
        pair, member = np.tile(np.arange(len(self.records)), 2), np.arange(len(score)) < len(self.records)
        tables = {
            name: measure(RecordTable.from_columns(column, member, pair=pair))
            for name, column in scores.items()
            if np.isfinite(column).all()
        }
        return {name: Estimate(table.auc, table.auc_low, table.auc_high) for name, table in tables.items()}

    @property
    def around(self) -> tuple[Tensor | None, Tensor | None]:
        """The models (K, P) before the client left and after it was forgotten; None: there are no such two."""
        if self.departure is None:
            return None, None
        before, after = self.departure.before, self.departure.after
        after = self.state.models if before.equal(after) else after
        return (before, after) if before.shape == after.shape else (None, None)

    def _candidates(self) -> Candidates:
        federation, records = self.records.federation, self.records
        rows, client = records.rows_on_device(torch.arange(2 * len(records))), records.client
        of_client = {"client": federation.ids[client], "examples": federation.clients.sizes[client]}
        x = gather(federation.clients.x, rows)
        return Candidates.of_groups(x, records.labels, records.group, self.population, **of_client)

    def others(self, engine: Engine) -> tuple[dict[str, GroupValues], dict[str, GroupValues]]:
        """The accuracy of those who were there before and stay to the end, by group: with the models before the client
        left, and with the final ones. Both are empty where there is no departure.

        Clients choose among the earlier models by the rule of the last round, at its risks.
        """
        presence, before = self.simulation.presence, self.around[0]
        if before is None or presence is None:
            return {}, {}
        there = presence.present(self.round - 1)
        rest = there[torch.isin(there, presence.present(self.simulation.last_round))]
        training, state = self.simulation.on(engine).take(rest), self.state.take(rest)
        both = [training.deployed(now)[0] for now in (replace(state, models=before), state)]
        earlier, later = (group_values(deployed, training.federation, engine) for deployed in both)
        return earlier, later
