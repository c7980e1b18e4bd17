"""The rounds of a federation, in which clients choose models, train, and send updates that the server aggregates."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.core.settings import plain
from shoal.data.federation import Federation
from shoal.data.presence import Presence
from shoal.data.shards import Shards
from shoal.engine.engine import DivergenceError, Engine
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.protocols import (
    Algorithm,
    ClusterRound,
    LocalDefense,
    MaliciousClients,
    PlanRule,
    Release,
    RiskEstimator,
    SteeringRule,
    UpdateFilter,
    require_counted_trainings,
)
from shoal.engine.rounds.cohort_trainer import CohortTrainer
from shoal.engine.rounds.leaving import Forgetting, Leaving
from shoal.engine.rounds.round_plan import (
    Aggregate,
    Cohort,
    Departure,
    DeployedModels,
    LocalTraining,
    PersonalModels,
    RoundPlan,
    RoundReport,
    RoundUpdates,
    chosen_losses,
    neutral_preferences,
)
from shoal.engine.state import ClientVectors, State, Tensors
from shoal.engine.worker_pool import RoundClock

LOG = logging.getLogger(__name__)

_BLOCK = 2**24
"""The number of elements in personal models that are fine-tuned together (64 MiB)."""


@dataclass(frozen=True, eq=False)
class Training:
    """A federation in training: data, algorithm, engine, defences, attackers and random streams.

    Args:
        local: the local training before any defence.
        engine: the engine, with the federation's data prepared (`Engine.prepare`).
        stream: the root of the run's random streams.
        participation: the fraction of clients that take part in a round, in [0, 1] (`Federation.cohort_size`).
        risk_estimator: the estimator of the models' risks; ``None`` leaves risks unknown.
        update_filter: the server's filter of every update; ``None`` applies no filter.
        client_filter: the honest clients' filter of every sent update; ``None`` applies no filter.
        defenses: the defences of local training, in order of application.
        malicious_clients: the clients that replace local training; ``None`` means that all clients are honest.
        coordinator: the rule that turns each risk estimate into directives; ``None`` sets no directives.
        release: the rule that replaces the models after every round; ``None`` keeps the models.
        record_every: the number of rounds between reports with the received updates; 0 records no updates.
        first_state: a `State` from which `Training.start` copies models and other values; ``None`` copies nothing.
        presence: the rounds in which each client is present; ``None`` means that all clients are always present.
        forgetting: the method of forgetting clients that leave; ``None`` continues with the same models.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.IFCA(clusters=2), local, engine, shoal.Stream(0))
        ...     state = training.start()
        ...     for state, report in training.rounds(state, 2):
        ...         print(state.round, report.assignment.tolist())
        ...
        1 [0, 0, 1, 1]
        2 [0, 0, 1, 1]
    """

    federation: Federation
    algorithm: Algorithm
    local: LocalSGD
    engine: Engine
    stream: Stream
    participation: float = 1.0
    risk_estimator: RiskEstimator | None = None
    update_filter: UpdateFilter | None = None
    client_filter: UpdateFilter | None = None
    defenses: tuple[LocalDefense, ...] = ()
    malicious_clients: MaliciousClients | None = None
    coordinator: SteeringRule | None = None
    release: Release | None = None
    record_every: int = 0
    first_state: State | None = None
    presence: Presence | None = None
    forgetting: Forgetting | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        object.__setattr__(self, "participation", plain(self.participation))
        number = isinstance(self.participation, int | float)
        require(number, f"'participation' must be a number in [0, 1] (got {self.participation!r})")
        require(0 <= self.participation <= 1, f"'participation' must be in [0, 1] (got {self.participation:g})")

    def start(self) -> State:
        """Return the state before the first round.

        Raises:
            InputError: `first_state` does not have the algorithm's initial number of models.
        """
        state = self.algorithm.init(self.engine, self.federation, self.local, self.stream("init"))
        if self.coordinator is not None:
            federation = self.federation if self.presence is None else self.federation.take(self.presence.present(1))
            state = self.coordinator.start(state, federation, self.engine, self.stream("coordinator", 0))
        if self.malicious_clients is not None:
            state = replace(state, adversary=self.malicious_clients.start(state, self.stream("insider")))
        return state if self.first_state is None else state.warm_start(self.first_state)

    def take(self, clients: Tensor) -> "Training":
        """Return the training of the clients at positions (n,) int64, all of them present in every round.

        Together with `State.take`, this method trains only the clients that are present in one round.
        """
        return replace(self, federation=self.federation.take(clients), presence=None, first_state=None)

    def present(self, number: int) -> Tensor:
        """Return the positions (n,) int64 of the clients that are present in round ``number``."""
        return torch.arange(len(self.federation)) if self.presence is None else self.presence.present(number)

    def with_newcomers(self, state: State) -> State:
        """Return ``state`` extended from the first n clients of the federation to all clients.

        The new clients' tensors come from the algorithm's first state.

        Raises:
            InputError: the state has more clients than the federation, or tensors that the first state does not have.
        """
        had, now = len(state.assignment), len(self.federation)
        require(had <= now, f"a state of {had} clients needs a federation of at least {had} clients (got {now})")
        first = self.algorithm.init(self.engine, self.federation, self.local, self.stream("init"))
        unknown = sorted((*(state.clients.keys() - first.clients), *(state.personal.keys() - first.personal)))
        require(
            not unknown,
            f"the algorithm's first state lacks the clients' tensors {unknown}; use the algorithm that made this state",
        )
        never = torch.zeros(now - had, state.trained.shape[1], dtype=torch.int64)
        clients = {name: torch.cat([rows, first.clients[name][had:].to(rows)]) for name, rows in state.clients.items()}
        old = torch.arange(had)
        personal = {
            name: first.personal[name].replace_rows(old, rows.tensor()) for name, rows in state.personal.items()
        }
        return replace(
            state,
            assignment=torch.cat([state.assignment, torch.full((now - had,), -1)]),
            clients=clients,
            personal=personal,
            trained=torch.cat([state.trained, never]) if state.trained.numel() else state.trained,
        )

    def rounds(self, state: State, upto: int) -> Iterator[tuple[State, RoundReport]]:
        """Train from ``state`` until ``upto`` rounds are completed, and yield each round's state and report."""
        while state.round < upto:
            state, report = self.round(state)
            yield state, report

    def round(self, state: State) -> tuple[State, RoundReport]:
        """Forget leaving clients, train one more round, and return the new state and the report.

        Raises:
            InputError: training diverged; the message names the round, the client and the learning rate.
        """
        if self.presence is None:
            return self._round(state)
        state, departure = self._without_leavers(state)
        present = self.present(state.round + 1)
        after, report = self.take(present)._round(state.take(present))
        return state.put(present, after), replace(report, cohort=present[report.cohort], departure=departure)

    def _without_leavers(self, state: State) -> tuple[State, Departure | None]:
        """Forget clients that leave before the next round; the departure is ``None`` if none of them trained."""
        leavers = torch.empty(0) if self.presence is None else self.presence.leavers(state.round + 1)
        if self.forgetting is None or not len(leavers) or bool((state.assignment[leavers] < 0).all()):
            return state, None
        began, leaving = time.perf_counter(), Leaving(self, state, leavers)
        after, departure = self.forgetting.forget(leaving)
        past = leaving.seconds.get("history", 0.0)
        spent = time.perf_counter() - began - past
        return after, replace(departure, seconds=spent, history_seconds=past)

    def _round(self, state: State) -> tuple[State, RoundReport]:
        number = state.round + 1
        clients = self.cohort(number)
        clock = RoundClock()
        plan, aggregate = RoundPlan(torch.empty(0, dtype=torch.int64), ()), Aggregate(state.models, ())
        after, record = replace(state, round=number), self.record_every > 0 and number % self.record_every == 0
        if len(clients):
            after, plan, aggregate = self.round_of(state, clients, clock=clock, record=record)
        with clock.part("red_team"):
            after, is_due = self.with_risks(after)
        ids = self.federation.ids[clients]
        updates = RoundUpdates.collect(number, state.models, ids, plan, aggregate) if record else None
        return after, RoundReport(clients, plan, is_due, clock.seconds(), updates)

    def round_of(
        self,
        state: State,
        clients: Tensor,
        choice: Tensor | None = None,
        *,
        clock: RoundClock | None = None,
        record: bool = False,
    ) -> tuple[State, RoundPlan, Aggregate]:
        """Return the new state, plan and aggregate of a round of ``clients`` (n,), without risk estimation.

        Args:
            clients: the positions of at least one client, in the order of the client ids.
            choice: prescribed model choices, (n,) int64; ``None`` lets clients choose. Prescribed choices affect only
                algorithms whose clients choose by mean loss.
            record: whether the aggregate contains `Aggregate.sent`.
        """
        clock = clock or RoundClock()
        with clock.part("choose"):
            cohort = self.cohort_of(state, clients)
            if choice is not None:
                losses = chosen_losses(choice, len(state.models))
                cohort = replace(cohort, scores=lambda *_: losses, preferences=neutral_preferences(len(clients)))
            plan = self.algorithm.plan(state, cohort)
            for defense in self.defenses:
                if isinstance(defense, PlanRule):
                    plan = defense.adjust_plan(plan, cohort.sizes)
        with clock.side_by_side():
            aggregate, adversary = self._trained(state, cohort, plan, clock, record=record)
        with clock.part("aggregation"):
            after = self.merged(state, cohort, plan, aggregate, adversary)
        if self.release is not None:
            with clock.part("defenses"):
                stream = self.stream("round", cohort.round, "release")
                after = self.release.after_round(state, after, self.federation, self.engine, stream)
        return after, plan, aggregate

    def with_risks(self, after: State) -> tuple[State, bool]:
        """Return ``after``, with new risks and directives if an estimate is due, and whether risks were estimated."""
        estimator, number = self.risk_estimator, after.round
        if estimator is None or estimator.every == 0 or number % estimator.every:
            return after, False
        stream = self.stream("red team", number)
        try:
            local = self.local_of_clusters(after)
            estimate = estimator.estimate(after, self.federation, self.engine, local, stream)
            after = replace(after, risks=estimate.risks, risk_intervals=estimate.intervals)
            if self.coordinator is not None:
                stream = self.stream("coordinator", number)
                after = self.coordinator.update(after, self.federation, self.engine, stream)
        except DivergenceError:
            LOG.warning("round %d: a shadow model's loss became NaN; risks are unchanged", number)
        return after, True

    def cohort(self, number: int) -> Tensor:
        """Return the positions (n,) of a round's randomly drawn clients, ordered by client id; possibly empty."""
        if self.presence is not None:
            present = self.present(number)
            return present[self.take(present).cohort(number)]
        by_id = self._by_id
        count = self.federation.cohort_size(self.participation)
        if count == len(by_id):
            return by_id
        drawn = torch.randperm(len(by_id), generator=self.stream("round", number, "cohort").generator())[:count]
        return by_id[drawn.sort().values]

    @cached_property
    def _by_id(self) -> Tensor:
        """The positions (N,) of the clients, ordered by id."""
        return torch.argsort(self.federation.ids)

    def cohort_of(self, state: State, clients: Tensor) -> Cohort:
        """Return the cohort of the clients at positions (n,) in the round after ``state``."""
        shards = self.federation.clients_in_round(state.round + 1).take(clients)
        first_batch = partial(self.local.first_batch, shards, self.federation.ids[clients], self.batches(state))
        return self._cohort(state, clients, shards, first_batch, state.round + 1)

    def final_cohort(self, state: State) -> Cohort:
        """Return the cohort of all clients with all their examples, after the last round."""
        shards = self.federation.clients
        cohort = self._cohort(state, torch.arange(len(self.federation)), shards, lambda: shards, state.round)
        losses = cache(lambda: cohort.losses(state.models))
        return replace(
            cohort,
            scores=lambda models, examples: losses() if models is state.models else cohort.losses(models, examples),
        )

    def deployed_models(self, state: State) -> tuple[DeployedModels, Tensor]:
        """Return the models in use after the last round, and each client's mean loss on its examples, (N,) float64."""
        cohort = self.final_cohort(state)
        deployed = self.algorithm.deployed_models(state, cohort)
        if deployed.fine_tuning:
            deployed = self._fine_tuned(state, deployed)
        if deployed.models is state.models:
            return deployed, cohort.losses(state.models)[torch.arange(len(cohort)), deployed.model]
        losses = torch.empty(len(cohort), dtype=torch.float64)
        for s in deployed.model.unique().tolist():
            users = torch.nonzero(deployed.model == s).flatten()
            shards = self.federation.clients.take(users)
            losses[users] = self._losses(state, deployed.models[s][None], shards, users, state.round)[:, 0]
        return deployed, losses

    def local_of(self, state: State, cluster: int, local: LocalSGD | None = None) -> LocalSGD:
        """Return the local training of a cluster's clients in the round after ``state``, with all defences applied.

        ``local`` is the local training before the defences; ``None`` uses the run's local training.
        """
        directive = {name: float(values[cluster]) for name, values in state.directives.items()}
        cluster_round = ClusterRound(state.round + 1, cluster, float(state.risks[cluster]), directive)
        changed = self.local if local is None else local
        for defense in self.defenses:
            changed = defense.local(changed, cluster_round)
        return changed.at_round(state.round + 1)

    def local_of_clusters(self, state: State) -> tuple[LocalSGD, ...]:
        """Return the local training of each of the K clusters in the last round, with all defences applied."""
        last = replace(state, round=max(0, state.round - 1))
        return tuple(self.local_of(last, k) for k in range(len(state.models)))

    def batches(self, state: State) -> Stream:
        """Return the random stream of the batches of the round after ``state``."""
        return self.stream("round", state.round + 1, "batches")

    def _fine_tuned(self, state: State, deployed: DeployedModels) -> DeployedModels:
        """Return the deployed models after fine-tuning, with one personal model per client."""
        if any(local.private for local in self.local_of_clusters(state)):
            require_counted_trainings(self.algorithm, self.local, [deployed.fine_tuning], final=True)
        everyone = torch.arange(len(self.federation))
        for index, local in enumerate(deployed.fine_tuning):
            models = PersonalModels.from_rows(self._trained_once(state, deployed, local, index), everyone)
            deployed = replace(deployed, models=models, model=everyone)
        return deployed

    def _trained_once(
        self, state: State, deployed: DeployedModels, local: LocalSGD | None, index: int
    ) -> ClientVectors:
        """Return the models of all clients after one local training, computed for some clients at a time."""
        everyone, width = torch.arange(len(self.federation)), state.models.shape[1]
        rows = ClientVectors.same(state.models[0], len(everyone))
        # Fine-tuning uses all examples, even if a round uses only some of them.
        batches = self.stream("deployed", state.round, "batches")
        for clients in everyone.split(max(1, _BLOCK // width)):
            params, init_index = deployed.models, deployed.model[clients]
            if isinstance(params, PersonalModels):
                params, init_index = params.rows(init_index), torch.arange(len(clients))
            shards = self.federation.clients.take(clients)
            trainer = replace(self.trainer(state, clients), shards=shards, batches=batches)
            training = LocalTraining(params, init_index, keep=lambda update: update, local=local)
            try:
                aggregate, _ = trainer.train(state, RoundPlan(deployed.assignment[clients], (training,)), index)
            except DivergenceError as diverged:
                client = clients[diverged.owner]
                rate = self.local_of(state, int(deployed.assignment[client]), local).learning_rate
                raise self._diverged(f"the fine-tuning after round {state.round}", client, rate) from diverged
            (update,) = aggregate.kept
            assert update is not None
            rows = rows.replace_rows(clients, params[init_index] + update)
        return rows

    def _trained(
        self, state: State, cohort: Cohort, plan: RoundPlan, clock: RoundClock, *, record: bool
    ) -> tuple[Aggregate, Tensors]:
        """Return the outcome of a plan's training runs, and the new `State.adversary`."""
        try:
            trainer = replace(self.trainer(state, cohort.clients), record=record, clock=clock)
            aggregate, adversary = trainer.train(state, plan)
        except DivergenceError as diverged:
            raise self._diverged_in_round(cohort.round, cohort.clients[diverged.owner]) from diverged
        if any(self.local_of(state, k).private for k in plan.assignment.unique().tolist()):
            require_counted_trainings(self.algorithm, self.local, plan.trainings_of_clients())
        return aggregate, adversary

    def merged(
        self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate, adversary: Tensors | None = None
    ) -> State:
        """Return the state after the server has processed the outcome of a round's training runs.

        ``adversary`` is the new `State.adversary`; ``None`` keeps the old one.
        """
        assignment = state.assignment.clone()
        assignment[cohort.clients] = plan.assignment
        now = replace(
            state,
            round=cohort.round,
            assignment=assignment,
            adversary=state.adversary if adversary is None else adversary,
            trained=_last_trained(state, cohort, plan),
        )
        after = self.algorithm.server_update(now, cohort, plan, aggregate)
        if after.trained.shape[1] == len(after.models):
            return after
        # After a change of K, only this round's clients are known to have trained the models.
        trained = torch.zeros(len(after.assignment), len(after.models), dtype=torch.int64)
        trained[cohort.clients, after.assignment[cohort.clients]] = cohort.round
        return replace(after, trained=trained)

    def trainer(self, state: State, clients: Tensor) -> CohortTrainer:
        """Return the trainer of the clients at positions (n,) in the round after ``state``."""
        return CohortTrainer(
            engine=self.engine,
            shards=self.federation.clients_in_round(state.round + 1).take(clients),
            ids=self.federation.ids[clients],
            local_of=lambda cluster, local: self.local_of(state, cluster, local),
            batches=self.batches(state),
            update_filter=self.update_filter,
            client_filter=self.client_filter,
            malicious_clients=self.malicious_clients,
        )

    def _cohort(
        self, state: State, clients: Tensor, shards: Shards, first_batch: Callable[[], Shards], number: int
    ) -> Cohort:
        """Return the cohort after ``state`` with its ``shards``; errors name the round ``number``."""

        def scores(models: Tensor, examples: Literal["all", "batch"]) -> Tensor:
            return self._losses(state, models, shards if examples == "all" else first_batch(), clients, number)

        def example_scores(models: Tensor) -> Tensor:
            losses = self.engine.example_losses(models, shards)
            return self._finite(state, losses, clients[shards.owners()], number)

        return Cohort(
            round=state.round + 1,
            clients=clients,
            sizes=shards.sizes,
            preferences=self.federation.preferences.take(clients),
            local=self.local.at_round(state.round + 1),
            layout=self.engine.model.layout,
            scores=scores,
            stream=self.stream("round", state.round + 1, "server"),
            example_scores=example_scores,
            labels=shards.y[shards.indices.to(shards.y.device)].cpu(),
        )

    def _losses(self, state: State, models: Tensor, shards: Shards, clients: Tensor, number: int) -> Tensor:
        return self._finite(state, self.engine.losses(models, shards), clients, number)

    def _finite(self, state: State, losses: Tensor, clients: Tensor, number: int) -> Tensor:
        """Return the ``losses`` (m, K) of ``clients`` (m,), or raise an error if one is not finite.

        With DP-SGD, replace such a loss by float32's largest number, because an error would reveal, without noise, that
        the model overflows on a record.
        """
        unusable = ~torch.isfinite(losses).all(dim=1)
        if not bool(unusable.any()):
            return losses
        if any(self.local_of(state, k).private for k in range(len(state.models))):
            largest = torch.finfo(torch.float32).max
            return losses.nan_to_num(nan=largest, posinf=largest, neginf=-largest)
        raise self._diverged_in_round(number, clients[unusable][0])

    def _diverged_in_round(self, number: int, position: Tensor) -> InputError:
        return self._diverged(f"round {number}", position, self.local.at_round(number).learning_rate)

    def _diverged(self, when: str, position: Tensor, learning_rate: float) -> InputError:
        """Return the error for a client whose training diverged."""
        return InputError(
            f"the loss became NaN in {when} at client {int(self.federation.ids[position])} with learning rate "
            f"{learning_rate:g}; lower 'learning_rate'"
        )


def _last_trained(state: State, cohort: Cohort, plan: RoundPlan) -> Tensor:
    """Return the new `State.trained`: clients have trained a model if they have weight in its aggregation."""
    trained = state.trained.clone()
    if trained.shape != (len(state.assignment), len(state.models)):
        trained = torch.zeros(len(state.assignment), len(state.models), dtype=torch.int64)
    for training in plan.trainings:
        if training.weights is not None:
            row = trained[cohort.clients]
            row[(training.weights != 0).T] = cohort.round
            trained[cohort.clients] = row
    return trained
