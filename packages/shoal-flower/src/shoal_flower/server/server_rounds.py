"""The server's rounds: it offers models, waits for updates, and merges them.

Between rounds the server requests histograms of losses, and votes on whether a risk exceeds the clients' limits.
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Literal, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from shoal.attacks.queries.loss_histograms import EDGES, accuracies_of
from shoal.audit import RedTeam
from shoal.audit.red_team import fill_unknown
from shoal.control import LimitController
from shoal.control.coordinator import shares_of_answers, utilities
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data import Federation, Standardizer
from shoal.engine import (
    ClientUpdate,
    Engine,
    LocalSGD,
    ReceivedUpdates,
    RiskEstimate,
    RoundPlan,
    State,
    Training,
    server_plan,
    server_round,
)
from shoal.engine.worker_pool import returned_memory
from shoal_flower.messages import (
    NO_FEATURES,
    NO_FROZEN,
    Offer,
    Refusal,
    RejectedReplyError,
    check_histograms,
    long_updates,
    with_bounded_shares,
)
from shoal_flower.server.attendance import Attendance, SentFile
from shoal_flower.server.exchange import NodeReply
from shoal_flower.server.roster import Member
from shoal_flower.wire_codec import (
    pack_models,
    pack_offer,
    unpack_histograms,
    unpack_refusal,
    unpack_reply,
    unpack_vote,
)


@dataclass(eq=False)
class UpdateFile:
    """The clients' models of a round, as rows of float32 in a temporary file.

    Weights and the order of summation depend on all replies, so the sum begins after the last reply. The merged model
    equals the simulation's model bit for bit. Memory holds a few models for any number of clients. The file has 4 bytes
    per parameter and client.

    Args:
        parameters: P, the length of a row.
        order: the row number of each position; an empty list means the order of arrival.
    """

    folder: Path
    parameters: int
    order: list[int] = field(default_factory=list)
    _rows: int = 0
    _file: IO[bytes] | None = None

    def add(self, end: Tensor) -> int:
        """Add a row (P,) and return its number."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - until `close`
        self._file.seek(0, 2)
        self._file.write(end.contiguous().numpy().data)
        self._rows += 1
        return self._rows - 1

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, positions: Tensor) -> Tensor:
        """Return the rows (u, P) at ``positions`` (u,)."""
        rows = np.empty((len(positions), self.parameters), dtype=np.float32)
        for row, position in zip(rows, positions.tolist(), strict=True):
            assert self._file is not None
            self._file.seek(4 * self.parameters * (self.order[position] if self.order else position))
            self._file.readinto(row.data)  # pyright: ignore[reportAttributeAccessIssue]
        return torch.from_numpy(rows)

    def close(self) -> None:
        """Delete the file."""
        if self._file is not None:
            self._file.close()


NAMES = 100
"""The largest number of clients that a live view names."""

_SHOWN = 0.5
"""The seconds between two `Progress` reports of a round."""


@dataclass(frozen=True)
class Progress:
    """The progress of a round, or of the wait for its clients, for a live view.

    Args:
        round: the round's number; 0 before the first round.
        asked: the number of clients that received an offer.
        answered: the number of clients that answered.
        waiting: the names of clients without an answer, at most `NAMES`.
        trained: the trained model of each client that answered, by name, at most `NAMES`.
        missing: the number of further clients that the round needs to begin.
        waits_for: the names of absent known clients, while clients are missing, at most `NAMES`.
    """

    round: int
    asked: int = 0
    answered: int = 0
    waiting: tuple[str, ...] = ()
    trained: Mapping[str, int] = field(default_factory=dict)
    missing: int = 0
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Update:
    """A client's update, whose model is a row of an `UpdateFile`."""

    update: ClientUpdate
    norm: float
    row: int


@dataclass(frozen=True)
class Server:
    """The server of a run.

    Args:
        config: the run's configuration for clients, as TOML.
        choice: the party that chooses a client's model (`RemoteRounds`).
        watch: a function that is called at every change in a round.
        frozen: the file of the models' frozen tensors, for clients with different tensors, or ``None`` if unknown.
    """

    attendance: Attendance
    config: str
    choice: Literal["client", "server", "shares"]
    classes: tuple[str, ...] = ()
    scale: Standardizer | None = None
    features: SentFile | None = None
    watch: Callable[[Progress], object] = lambda _: None
    frozen: SentFile | None = None

    @property
    def members(self) -> list[Member]:
        """The clients, by position in the federation."""
        return self.attendance.roster.members

    def offer(
        self, number: int, member: Member, models: Tensor, risks: Tensor, directives: Mapping[str, Tensor]
    ) -> Offer:
        """Return the offer to a member in the round ``number``."""
        stamp = self.attendance.stamps.of(member.name)
        digest = "" if self.features is None else self.features.digest
        known = (self.classes, self.scale, stamp, digest, "" if self.frozen is None else self.frozen.digest)
        return Offer(number, member.id, self.config, models, risks, directives, *known)

    def gather(self, number: int) -> None:
        """Wait for enough clients for the round ``number``, and report missing clients."""
        watch = self.watch
        self.attendance.gather(
            number, lambda missing, absent: watch(Progress(number, missing=missing, waits_for=absent[:NAMES]))
        )

    def round(self, training: Training, state: State) -> tuple[State, RoundPlan]:
        """Run one round with the connected clients of its cohort, up to the estimate of risks.

        Raises:
            InputError: a merged model is not finite, or no update was merged in several consecutive rounds.
        """
        cohort = [i for i in training.cohort(state.round + 1).tolist() if self.members[i].node is not None]
        with returned_memory(), closing(UpdateFile(self.attendance.settings.out, state.models.shape[1])) as ends:
            updates = self._updates(training, state, cohort, ends)
            for i, sent in updates.items():
                self.members[i].examples, self.members[i].trained = sent.update.examples, self.members[i].trained + 1
            # Weights and the red team need the numbers of examples, which are now known.
            sized = replace(training, federation=self.attendance.roster.federation(training.federation))
            after, plan = server_round(sized, state, self._received_updates(updates, ends, len(state.models)))
        for k, model in enumerate(after.models):
            require(
                bool(torch.isfinite(model).all()),
                f"round {after.round}: the merged model {k} has NaN or infinite numbers; this round is not saved",
            )
        return after, plan

    def _updates(self, training: Training, state: State, cohort: list[int], ends: UpdateFile) -> dict[int, _Update]:
        """Return the updates of the clients at ``cohort``, by position, and write their models to ``ends``."""
        number, members, attendance = state.round + 1, self.members, self.attendance
        offered, messages = self._offers(training, state, cohort), {}
        # Offers of the same models share one object, which is packed and hashed once.
        distinct = {id(models): models for models, _ in offered.values()}
        packed = {key: pack_models(models) for key, models in distinct.items()}
        for i, (models, clusters) in offered.items():
            directives = {name: values[clusters] for name, values in state.directives.items()}
            offer = self.offer(number, members[i], models, state.risks[clusters], directives)
            messages[i] = pack_offer(offer, packed[id(models)])
        attendance.wait_for_some(cohort)
        updates, silent, shown = dict[int, _Update](), set(cohort), 0.0
        enough = math.ceil(attendance.settings.quorum * len(cohort))
        self._show(number, len(cohort), silent, updates)
        for i, answer in attendance.ask("train", messages, number):
            silent.discard(i)
            models, clusters = offered[i]
            reply = self._accept(number, members[i], answer, models)
            if reply is not None:
                update, norm = reply
                chosen = update.cluster if self.choice != "server" else int(clusters[0])
                updates[i] = _Update(
                    replace(update, cluster=chosen, end=torch.empty(0)), norm, row=ends.add(update.end)
                )
            if time.monotonic() - shown > _SHOWN:
                shown = time.monotonic()
                self._show(number, len(cohort), silent, updates)
            if len(updates) >= enough:
                break
        self._show(number, len(cohort), silent, updates)
        if len(updates) < enough:
            for i in sorted(silent, key=lambda i: self.members[i].node or 0):
                attendance.discard(number, self.members[i], "missed", f"no reply by the deadline of round {number}")
        self._reject_long(number, updates)
        if cohort:
            reason = "no client's update was merged: all refused, did not reply or were rejected"
            attendance.end_round(number, merged=bool(updates), otherwise=reason)
        return updates

    def _reject_long(self, number: int, updates: dict[int, _Update]) -> None:
        """Remove updates from ``updates`` whose norm is far above the others'."""
        order, ratio = list(updates), self.attendance.settings.limits.max_norm_ratio
        norms = [sent.norm for sent in updates.values()]
        for at, limit in long_updates(norms, [sent.update.cluster for sent in updates.values()], ratio):
            reason = f"the update's norm {norms[at]:.4g} exceeds {limit:.4g}, {ratio:g} times the round's median"
            self.attendance.discard(number, self.members[order[at]], "rejected", reason)
            del updates[order[at]]

    def _accept(
        self, number: int, member: Member, answer: NodeReply, models: Tensor
    ) -> tuple[ClientUpdate, float] | None:
        """Return the update in an answer to an offer of ``models``, and its norm; None if there is no valid update."""
        attendance = self.attendance
        if answer.content is None:
            attendance.discard(number, member, answer.kind, answer.error)
            return None
        try:
            limits, counts_best = attendance.settings.limits, self.choice == "shares"
            reply = unpack_reply(answer.content, models, limits, counts_best=counts_best)
        except RejectedReplyError as error:
            attendance.discard(number, member, "rejected", str(error))
            return None
        if isinstance(reply, Refusal):
            attendance.discard(number, member, "refused", reply.reason)
            lacked = {NO_FEATURES: self.features, NO_FROZEN: self.frozen}.get(reply.reason)
            if lacked is not None:
                lacked.forget(member)
            return None
        return reply

    def _offers(self, training: Training, state: State, cohort: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """Return the offered models (K, P) and their clusters (K,), by the client's position."""
        clusters = len(state.models)
        if self.choice != "server" or not cohort:
            return dict.fromkeys(cohort, (state.models, torch.arange(clusters)))
        count = torch.ones(len(cohort), dtype=torch.int64)
        best = torch.ones(len(cohort), clusters, dtype=torch.int64)
        plan = server_plan(training, state, torch.tensor(cohort), count, best)
        (sent,) = plan.trainings
        starts = {start: sent.initial_params[start][None] for start in sent.init_index.unique().tolist()}
        return {
            i: (starts[start], cluster[None])
            for i, start, cluster in zip(cohort, sent.init_index.tolist(), plan.assignment, strict=True)
        }

    def _received_updates(self, updates: Mapping[int, _Update], ends: UpdateFile, clusters: int) -> ReceivedUpdates:
        order = sorted(updates, key=lambda i: self.members[i].id)
        replies, counts = [updates[i].update for i in order], torch.eye(clusters, dtype=torch.int64)
        best = [counts[update.cluster] * update.examples if update.best is None else update.best for update in replies]
        ends.order = [updates[i].row for i in order]
        return ReceivedUpdates(
            clients=torch.tensor(order, dtype=torch.int64),
            sizes=torch.tensor([update.examples for update in replies], dtype=torch.int64),
            best=torch.stack(best) if best else counts[:0],
            ends=ends,
        )

    def _show(self, number: int, asked: int, silent: set[int], updates: Mapping[int, _Update]) -> None:
        waiting = sorted(self.members[i].name for i in silent)
        trained = {self.members[i].name: sent.update.cluster for i, sent in islice(updates.items(), NAMES)}
        self.watch(Progress(number, asked, asked - len(silent), tuple(waiting[:NAMES]), trained))


_Reply = TypeVar("_Reply")


@dataclass(frozen=True, eq=False)
class RemoteHistograms:
    """A `RiskEstimator` from clients' histograms of losses on the model that each client trained last."""

    server: Server
    team: RedTeam

    @property
    def every(self) -> int:
        """The number of rounds between estimates."""
        return self.team.every

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        """Estimate each model's risk, without the clients that did not answer."""
        del local, engine
        bins = len(EDGES) + 1
        counts = np.zeros((len(federation), 2, bins))

        def unpack(i: int, records: RecordDict) -> np.ndarray:
            received = unpack_histograms(records, bins)
            limits, epsilon = self.server.attendance.settings.limits, self.team.histograms.epsilon
            check_histograms(received, self.server.members[i].examples, limits, epsilon)
            return received

        for i, received in _replies(self.server, "histograms", state, state.risks, unpack):
            counts[i] = received
        counts = with_bounded_shares(counts, state.assignment.numpy())
        estimates = accuracies_of(counts, state.assignment, federation.ids, len(state.models), stream("histograms"))
        return fill_unknown(estimates, state)


@dataclass(frozen=True, eq=False)
class RemoteCoordinator:
    """A `SteeringRule` from one bit per client, which keeps thresholds at the clients.

    Accuracy is measured on the server's shadow set. Before the first round, no client counts as over its limit.
    """

    server: Server
    law: LimitController

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Return the state before the first round; no client is asked."""
        return replace(self.law, vote_epsilon=None).start(state, federation, engine, stream)

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Return the state with new directives, from the answers that arrived."""
        del stream
        risks = self.law.reported_risks(state.risks)
        votes = dict(_replies(self.server, "votes", state, risks, lambda _, records: unpack_vote(records)))
        answers = torch.tensor([*votes.values()], dtype=torch.bool)
        model = state.assignment[torch.tensor([*votes], dtype=torch.int64)]
        shares = shares_of_answers(answers, model, len(state.models), self.law.vote_epsilon)
        return self.law.steer(state, shares, shares, *utilities(state, federation, engine))


def _replies(
    server: Server,
    question: Literal["histograms", "votes"],
    state: State,
    risks: Tensor,
    unpack: Callable[[int, RecordDict], _Reply],
) -> Iterator[tuple[int, _Reply]]:
    """Yield the replies of all connected clients about their own models, by position."""
    messages, attendance, packed = dict[int, RecordDict](), server.attendance, dict[int, ArrayRecord]()
    for i, (member, cluster) in enumerate(zip(server.members, state.assignment.tolist(), strict=True)):
        if member.node is not None and cluster >= 0:
            one = torch.tensor([cluster])
            # A vote needs only a number, so the model stays at the server.
            models = state.models[one] if question == "histograms" else state.models[:0]
            if cluster not in packed:
                packed[cluster] = pack_models(models)
            messages[i] = pack_offer(server.offer(state.round, member, models, risks[one], {}), packed[cluster])
    for i, answer in attendance.ask(question, messages, state.round):
        try:
            if answer.content is None:
                raise RejectedReplyError(answer.error)
            if (refusal := unpack_refusal(answer.content)) is not None:
                attendance.discard(state.round, server.members[i], "refused", f"{question}: {refusal.reason}")
                continue
            yield i, unpack(i, answer.content)
        except RejectedReplyError as error:
            attendance.discard(state.round, server.members[i], "rejected", f"{question}: {error}")
