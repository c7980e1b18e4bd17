"""Reference federations: repetitions of a whole run, including clustering, with some examples exchanged.

Attacks such as LiRA and RMIA compare a record's score on models with and without the record. A record also affects the
choice of clusters in a reference federation. Reference federations reuse the risks and directives of the attacked run,
because their own risks would change the defence.

Source: Carlini et al. 2022, arXiv:2112.03570, section IV, for centralised training.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan, nan

import numpy as np
import torch
from torch import Tensor

from shoal.attacks import Candidates, Knowledge, UpdateJoint, UpdateSpan
from shoal.attacks.queries.augmented_queries import mean_confidence, require_queries
from shoal.audit.model_scores import Membership, is_personal
from shoal.control import RecordedDirectives
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data import GroupedExamples
from shoal.data.shards import gather
from shoal.data.swap_pairs import OTHER_CLIENTS, PairedRecords, decoys, pair_records
from shoal.defenses import LaplaceNoise
from shoal.engine import DeployedModels, Engine, RoundReport, State, Training
from shoal.replay.first_rounds import MAX_BYTES, MAX_SECONDS, ROUNDS, FirstRounds
from shoal.replay.span_scores import (
    JOINT_NAMES,
    SPAN_NAMES,
    SpansOfRun,
    joints_to_ask,
    knowledge_of,
    span_scores,
)
from shoal.replay.stages import (
    ChainLink,
    RecordedRisks,
    matching_engine,
    recorded_rules,
    starts_before,
    warm_start_chain,
)
from shoal.simulation.distillation import apply_release
from shoal.simulation.play import initial_state
from shoal.simulation.round_metrics import RoundRow, round_metrics
from shoal.simulation.simulation import Simulation, WarmStart

SNAPSHOTS = 8
"""The largest number of scores in a trajectory."""

UNKNOWN_START = "the training of the models in 'start' is unknown, so its members may count as non-members here"
"""The caveat for a run that starts from a directory of models."""

NOT_REPEATED = "needs the models of every round, and the run cannot be repeated bit for bit here"
"""The reason for missing attacks on rounds."""

POPULATION = 1_000
"""The largest number of examples from the shadow set, which no federation trains on but all models score."""


@dataclass(frozen=True, eq=False)
class FederationScores:
    """Scores of the models of one federation on 2 Q records and on Z further examples.

    Args:
        score: the logit-scaled confidence of each record, (2 Q,) float64, by the model that the record's client trained
            last, or by the client's deployed model if the client never trained.
        member: whether the scoring model was trained on each record, (2 Q,) bool.
        model: the number of the scoring model of each client, (N,) int64.
        population: the scores of every model on the further examples, (S, Z) float64. S is 0 if clients have personal
            models, and Z is 0 without a shadow set.
        trajectory: the score after each round in `AttackedRun.snapshot_rounds`, (T, 2 Q) float64. T is 0 if clients
            have personal models or if no snapshot was taken.
        spans: the scores of the span attacks on the first rounds, (2 Q,) float64 by attack name, or NaN for records
            that cannot be attacked.
        seconds: the wall time of training.
    """

    score: Tensor
    member: Tensor
    model: Tensor
    population: Tensor
    trajectory: Tensor
    spans: Mapping[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def personal(self) -> bool:
        """Whether clients have personal models."""
        return len(self.population) == 0


@dataclass(frozen=True, eq=False)
class AttackedRun:
    """An attacked run, and the records that its reference federations exchange.

    Args:
        simulation: the simulation, moved to the engine.
        state: the state after the simulation's last round, with the released models.
        deployed: the models in use after the last round.
        risks: the published risks, by round.
        directives: the coordinator's directives, by round, or ``None`` without a coordinator.
        records: the attacked records, only of clients that trained in the last ``member_rounds`` rounds.
        population: examples that are non-members of every model.
        notes: caveats about the records, in sentences without a full stop.
        rows: the rows of `rounds.csv`, to verify repeated rounds.
        queries: the number of copies per record that an attack queries; trajectories use the record itself.
        snapshots: the rounds of a trajectory. A round's score uses the model that the client had trained last. An empty
            tuple means evenly spaced rounds and each client's final model.
    """

    simulation: Simulation
    state: State
    deployed: DeployedModels
    risks: RecordedRisks
    directives: RecordedDirectives | None
    records: PairedRecords
    population: GroupedExamples
    notes: tuple[str, ...] = ()
    rows: tuple[RoundRow, ...] = ()
    queries: int = 1
    snapshots: tuple[int, ...] = ()

    @staticmethod
    def from_run(
        simulation: Simulation, state: State, rows: Sequence[RoundRow], engine: Engine, *, queries: int = 1
    ) -> "AttackedRun":
        """Return the attack on a finished simulation with these ``rows`` of `rounds.csv`.

        Raises:
            InputError: the simulation has a property attack or no exchangeable example, or several ``queries`` are
                given for data other than images.
        """
        queries = require_queries(queries, simulation.federation.clients.x.shape[1:])
        require(
            simulation.round_attack is None and simulation.malicious_clients is None,
            "the audit needs a run without [property_attack]",
        )
        stream, training = Stream(simulation.seed)("audit"), simulation.on(engine)
        deployed, _ = training.deployed_models(state)
        member = Membership.of_deployed(state, deployed, simulation.member_rounds).latest >= 0
        present = torch.isin(torch.arange(len(member)), training.present(simulation.last_round))
        member &= present
        records = pair_records(simulation.federation, stream("records"), simulation.duplicates)
        federation, notes = simulation.federation, list[str]()
        if federation.own_inputs and records.within == "group":
            notes.append(OTHER_CLIENTS)
        if not bool(member[present].all()):
            idle = f"{int((~member[present]).sum())} of {int(present.sum())} clients"
            notes.append(f"{idle} did not train in the last rounds, and their records are not attacked")
        records = records.take(member[records.client[: len(records)]])
        for start in starts_before(simulation):
            if start.simulation is not None:
                records = records.take(~records.second_members(start.simulation.federation))
            else:
                notes.append(UNKNOWN_START)
        if queries > 1:
            notes.append(f"the score of each record is the mean over {queries} mirrored and shifted copies")
        risks, directives = recorded_rules(simulation, rows)
        return AttackedRun(
            simulation=simulation,
            state=state,
            deployed=deployed,
            risks=risks,
            directives=directives,
            records=records,
            population=population_of(simulation),
            notes=tuple(notes),
            rows=tuple(rows),
            queries=queries,
        )

    @property
    def stream(self) -> Stream:
        """The root of the attack's random streams."""
        return Stream(self.simulation.seed)("audit")

    def scores(self, engine: Engine) -> FederationScores:
        """Return the scores of the attacked models, which trained on the first record of each pair."""
        return self._scores(self.state, self.deployed, self._first, engine, self.simulation.member_rounds)

    def all_models(self, engine: Engine) -> Tensor:
        """Return the logit-scaled confidence of every cluster's model on every record, (2 Q, K) float64."""
        return self._of_all(self.state.models, engine, self.queries).T

    def exchanged(self, number: int) -> Tensor:
        """Draw the pairs whose second record reference federation ``number`` (from 0) trains on, as a mask (Q,) bool.

        Each pair is exchanged with probability 1/2. Federations 2 i and 2 i + 1 train on opposite records, so half of
        an even number of federations train on each record.
        """
        stream = self.stream("exchanged", number // 2)
        second = torch.rand(len(self.records), generator=stream.generator()) < 0.5
        return second if number % 2 == 0 else ~second

    @cached_property
    def stages(self) -> tuple[ChainLink, ...]:
        """The chain of simulations that led to the attacked models, in order."""
        last = ChainLink(
            self.simulation, None, self.risks, self.directives, self.records, torch.arange(len(self.records))
        )
        return (*warm_start_chain(self.simulation, self.records), last)

    @cached_property
    def snapshot_rounds(self) -> list[int]:
        """The rounds with scores in a trajectory, by default evenly spaced with the last round."""
        if self.snapshots:
            return [*self.snapshots]
        first, last = self.stages[0].simulation.first_round, self.simulation.last_round
        return sorted({round(after) for after in np.linspace(first, last, SNAPSHOTS + 1)[1:]})

    def replay(self, engine: Engine) -> FederationScores:
        """Repeat the attacked run, bit for bit on the same machine, and return its scores with their trajectory."""
        nothing = torch.zeros(len(self.records), dtype=torch.bool)
        return self._train(nothing, None, engine, self.simulation.member_rounds, ())

    def train_reference(self, number: int, engine: Engine, *, spans: Collection[str] = SPAN_NAMES) -> FederationScores:
        """Train reference federation ``number`` and score the records.

        The federation starts from the attacked run's initial models and reuses its risks and directives. Cohorts,
        batches and noise are drawn anew. The span attacks ``spans`` take as long as dozens of rounds, and `with_spans`
        can add their scores later.
        """
        stream = self.stream("reference federation", number)
        return self._train(self.exchanged(number), stream, engine, self.simulation.last_round, spans)

    def with_spans(
        self, scores: FederationScores, number: int, engine: Engine, spans: Collection[str] = SPAN_NAMES
    ) -> FederationScores:
        """Add span-attack scores to the ``scores`` of reference federation ``number``, repeating its first rounds."""
        stream = self.stream("reference federation", number)
        seen, last = _first_rounds(spans), self.simulation.last_round
        for _, state, known in self._rounds(self.exchanged(number), stream, engine, seen):
            if known is not None and state.round == min(seen.first - 1 + seen.most, last):
                return replace(scores, spans={**scores.spans, **self._spans(seen, known, engine, spans)})
        return scores

    def spans(self, engine: Engine) -> SpansOfRun:
        """Repeat the run's rounds and attack them by the span and joint attacks.

        Without noise, the span attacks read the first `ROUNDS` rounds. Joint attacks run only if a span attack is not
        exact, and read all rounds within the limits on time and memory.
        """
        noisy = self._noisy
        seen, known = self.first_rounds(engine, self.simulation.rounds if noisy else ROUNDS)
        if seen is None:
            return SpansOfRun({}, dict.fromkeys(SPAN_NAMES, NOT_REPEATED))
        spans = span_scores(seen, self._asked, engine, known)
        names = joints_to_ask(spans.scores)
        if not names:
            return spans._replace(repeat=SPAN_NAMES)
        seen = seen if noisy else self.first_rounds(engine, self.simulation.rounds)[0]
        assert seen is not None
        joint = span_scores(seen, self._asked, engine, known, names, self.listed)
        rounds, read, notes = self.simulation.rounds, len(seen.merged), list[str]()
        if UpdateJoint.name in names:
            read = min(read, len(seen.updates))
        if read < rounds:
            limits = f"{MAX_SECONDS:g} seconds and {MAX_BYTES / 1e6:,.0f} MB"
            notes.append(f"the joint attacks read {read} of {rounds} rounds; repeating them is limited to {limits}")
        return SpansOfRun(
            {**spans.scores, **joint.scores},
            {**spans.omitted, **joint.omitted},
            tuple(notes),
            # A matched filter over all rounds of all federations is slow, and the joint attack is stronger.
            () if noisy else SPAN_NAMES,
        )

    @property
    def _noisy(self) -> bool:
        """Whether clients add noise to their updates."""
        setup = self.simulation.setup
        return Knowledge(setup.first_local()).noisy or isinstance(setup.client_filter, LaplaceNoise)

    def first_rounds(self, engine: Engine, rounds: int = ROUNDS) -> tuple[FirstRounds | None, Knowledge]:
        """Repeat the first rounds of the run after its ``start``, and return them with the attacker's knowledge.

        The rounds are None if they differ from the recorded rounds, for example on another machine. Training stops
        after `MAX_SECONDS`, but runs at least `ROUNDS` rounds.
        """
        training = replace(self.simulation.on(engine), risk_estimator=self.risks, coordinator=self.directives)
        state, seen = initial_state(self.simulation, engine).state, FirstRounds(most=rounds)
        known, upto = knowledge_of(training, state), min(state.round + rounds, self.simulation.last_round)
        began, first = time.perf_counter(), state.round
        for after, report in seen.watched(training, state, upto):
            if not self._recorded(after, report, engine):
                return None, known
            if after.round - first >= ROUNDS and time.perf_counter() - began > MAX_SECONDS:
                break
        return seen, known

    @cached_property
    def _asked(self) -> Candidates | None:
        """The records for the span attacks, or None without records. Known non-members are the population, or unpaired
        test examples if there is no population.
        """
        if not len(self.records):
            return None
        federation, others, device = self.simulation.federation, self.population, self.population.y.device
        if not len(others) and self.records.source == "test":
            unpaired = ~torch.isin(torch.arange(len(federation.test)), self.records.test)
            others = federation.test.take(torch.nonzero(unpaired).flatten()[:POPULATION].to(device))
        everyone = self.records.rows_on_device(torch.arange(2 * len(self.records)))
        clients = self.records.client
        return Candidates.of_groups(
            gather(self.records.federation.clients.x, everyone),
            self.records.labels,
            self.records.group,
            others,
            client=federation.ids[clients],
            examples=federation.clients.sizes[clients],
        )

    @property
    def listed(self) -> dict[str, Candidates]:
        """The candidates of each joint attack besides the attacked pairs, by attack name."""
        lists = {name: self._on_list(shared=name == UpdateJoint.name) for name in JOINT_NAMES}
        return {name: others for name, others in lists.items() if others is not None}

    def _on_list(self, *, shared: bool) -> Candidates | None:
        """Return the clients' unpaired examples, and further non-members."""
        records, federation = self.records, self.simulation.federation
        owners, shards = federation.clients.owners(), records.federation.clients
        rest = torch.nonzero(~torch.isin(torch.arange(len(owners)), records.entry)).flatten()
        position, places = decoys(records, federation, self.stream("decoys", str(shared)), shared=shared)
        rows = torch.cat([shards.indices[rest], records.first_test + places]).to(shards.y.device)
        client = torch.cat([owners[rest], position])
        sizes, ids = federation.clients.sizes[client], federation.ids[client]
        if not len(rows):
            return None
        return Candidates(gather(shards.x, rows), y=shards.y[rows].cpu(), client=ids, examples=sizes)

    def _spans(self, seen: FirstRounds, known: Knowledge, engine: Engine, spans: Collection[str]) -> dict[str, Tensor]:
        """Return the span attacks' scores by name; NaN for an impossible attack."""
        scores = span_scores(seen, self._asked, engine, known, spans).scores
        none = np.full(2 * len(self.records), nan)
        return {name: torch.tensor(scores[name].score if name in scores else none) for name in spans}

    def _recorded(self, state: State, report: RoundReport, engine: Engine) -> bool:
        """Return whether a round's clients, losses and accuracies equal those in `rounds.csv` bit for bit."""
        recorded = [row for row in self.rows if row["round"] == state.round]
        evaluated = any(not isnan(row["accuracy"]) for row in recorded)
        trained = round_metrics(
            state, report, self.simulation.federation_in_round(state.round), engine, evaluated=evaluated
        )
        names = [name for name in trained[0] if name.partition(".")[0] in ("clients", "train_loss", "accuracy")]
        values = [np.array([[row[name] for name in names] for row in table]) for table in (trained, recorded)]
        return np.array_equal(*values, equal_nan=True)

    @property
    def _first(self) -> Tensor:
        """A mask of the first record of each pair, (2 Q,) bool."""
        return torch.arange(2 * len(self.records)) < len(self.records)

    def _train(
        self, exchange: Tensor, stream: Stream | None, engine: Engine, within: int, spans: Collection[str]
    ) -> FederationScores:
        """Train a federation and return its scores; see `_rounds` for ``exchange`` and ``stream``."""
        of_rounds, of_spans, last = list[tuple[Tensor, Tensor]](), dict[str, Tensor](), None
        seen = _first_rounds(spans)
        for last in self._rounds(exchange, stream, engine, seen):
            _, state, known = last
            if state.round in self.snapshot_rounds:
                of_rounds.append((self._of_all(state.models, engine, 1), state.assignment))
            if spans and known is not None and state.round == self.simulation.last_round:
                of_spans = self._spans(seen, known, engine, spans)
        assert last is not None
        training, state, _ = last
        deployed, _ = training.deployed_models(state)
        scores = self._scores(state, deployed, torch.cat([~exchange, exchange]), engine, within)
        scores = replace(scores, spans=of_spans)
        if scores.personal or not of_rounds:
            return scores
        client, everyone = self.records.client, torch.arange(2 * len(self.records))

        def followed(snapshot: Tensor, assignment: Tensor) -> Tensor:
            # If the number of models differs, use the model that each client had then.
            same = len(snapshot) == len(state.models) and not self.snapshots
            return snapshot[(scores.model if same else assignment.clamp(min=0))[client], everyone]

        return replace(scores, trajectory=torch.stack([followed(*snapshot) for snapshot in of_rounds]))

    def _rounds(
        self, exchange: Tensor, stream: Stream | None, engine: Engine, seen: FirstRounds
    ) -> Iterator[tuple[Training, State, Knowledge | None]]:
        """Yield the training, its state after each round of all stages, and in the last stage the attacker's knowledge.
        Pairs in ``exchange`` train on their second record. ``seen`` collects the last stage's first rounds. Without a
        ``stream``, random draws equal those of the run.
        """
        state = None
        for stage in self.stages:
            replay = replace(
                stage.simulation, federation=stage.records.swap_records(exchange[stage.pair]), reference_federations=0
            )
            replay = replay if state is None else replace(replay, start=WarmStart(state))
            with matching_engine(stage.engine, engine) as stage_engine:
                training = replace(
                    replay.on(stage_engine),
                    stream=Stream(replay.seed) if stream is None else stream,
                    risk_estimator=stage.risks,
                    coordinator=stage.directives,
                )
                state, last = initial_state(replay, stage_engine).state, stage is self.stages[-1]
                # Methods that retrain past rounds must start there too, not at a draw from the new stream.
                training = replace(training, first_state=state)
                known = knowledge_of(training, state) if last else None
                for after, _ in (seen if last else FirstRounds(most=0)).watched(training, state, replay.last_round):
                    state = after
                    if state.round == replay.last_round:
                        state = apply_release(replay.release, training, state)
                    yield training, state, known

    def _scores(
        self, state: State, deployed: DeployedModels, trained_on: Tensor, engine: Engine, within: int
    ) -> FederationScores:
        latest = Membership.of_deployed(state, deployed, within).latest
        model = torch.where(latest >= 0, latest, deployed.model)
        client, score = self.records.client, torch.empty(2 * len(self.records), dtype=torch.float64)
        for s in model[client].unique().tolist():
            inside = torch.nonzero(model[client] == s).flatten()
            score[inside] = confidence(deployed.models[s], self.records, engine, inside, self.queries)
        models = () if is_personal(deployed) else deployed.models
        x, y = self.population.x, self.population.y.cpu()
        rows = torch.arange(len(y), device=x.device)
        population = [mean_confidence(engine, model, x, y, rows, self.queries) for model in models if len(y)]
        none = torch.empty(len(models), 0, dtype=torch.float64)
        return FederationScores(
            score=score,
            member=trained_on & (latest >= 0)[client],
            model=model,
            population=torch.stack(population) if population else none,
            trajectory=torch.empty(0, 2 * len(self.records), dtype=torch.float64),
        )

    def _of_all(self, models: Tensor, engine: Engine, queries: int) -> Tensor:
        """Return the confidence of each model on each record, (K, 2 Q)."""
        return torch.stack([confidence(model, self.records, engine, queries=queries) for model in models])


def population_of(simulation: Simulation) -> GroupedExamples:
    """Draw at most `POPULATION` examples of the shadow set."""
    shadow, stream = simulation.federation.shadow, Stream(simulation.seed)("audit", "population")
    drawn = torch.randperm(len(shadow), generator=stream.generator())[:POPULATION]
    return shadow.take(drawn.to(shadow.y.device))


def confidence(
    model: Tensor, records: PairedRecords, engine: Engine, asked: Tensor | None = None, queries: int = 1
) -> Tensor:
    """Return the logit-scaled confidence of a model (P,) on the records ``asked``, (m,), or on all records, (2 Q,)."""
    asked = torch.arange(2 * len(records)) if asked is None else asked
    x, rows = records.federation.clients.x, records.rows_on_device(asked)
    return mean_confidence(engine, model, x, records.labels[asked], rows, queries)


def _first_rounds(spans: Collection[str]) -> FirstRounds:
    """Return the collector of the rounds, and for the server's attack of the updates, that these span attacks need."""
    return FirstRounds(most=ROUNDS if spans else 0, with_updates=UpdateSpan.name in spans)
