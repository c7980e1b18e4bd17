"""The server's rounds: it offers, waits for what clients chose and trained, and merges what it can."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from shoal.data import Standardizer
from shoal.deployment.flower_records import pack_offer, unpack_reply
from shoal.deployment.messages import Offer, Refusal, RejectedReplyError
from shoal.deployment.server.attendance import Attendance
from shoal.deployment.server.exchange import Answer
from shoal.deployment.server.roster import Member
from shoal.engine import ClientUpdate, Received, RoundPlan, State, Training, server_plan, server_round


@dataclass(frozen=True)
class Progress:
    """The progress of a round, for a live view: the clients that it waits for, and the models that others trained."""

    round: int
    waiting: tuple[str, ...]
    trained: Mapping[str, int]


@dataclass(frozen=True)
class Server:
    """The server of a run.

    Args:
        attendance: the clients that are there.
        config: what clients are sent of the run's configuration, as TOML.
        choice: who decides which model a client trains; see `RemoteRounds`.
        classes: names by number, where clients have data of their own.
        scale: the standardization of columns, where clients have tables of their own.
        watch: called whenever something changes in a round.
    """

    attendance: Attendance
    config: str
    choice: Literal["client", "server", "shares"]
    classes: tuple[str, ...] = ()
    scale: Standardizer | None = None
    watch: Callable[[Progress], object] = lambda _: None

    @property
    def members(self) -> list[Member]:
        """The clients, by position in the federation."""
        return self.attendance.roster.members

    def offer(
        self, number: int, member: Member, models: Tensor, risks: Tensor, directives: Mapping[str, Tensor]
    ) -> Offer:
        """The offer to a member in the round ``number``."""
        stamp = self.attendance.stamps.of(member.name)
        return Offer(number, member.id, self.config, models, risks, directives, self.classes, self.scale, stamp)

    def round(self, training: Training, state: State) -> tuple[State, RoundPlan]:
        """One round with the clients of its cohort that are there; risks are not estimated yet."""
        cohort = [i for i in training.cohort(state.round + 1).tolist() if self.members[i].node is not None]
        updates = self._updates(training, state, cohort)
        for i, update in updates.items():
            self.members[i].examples, self.members[i].trained = update.examples, self.members[i].trained + 1
        # Sizes are known now: weights and the red team go by them.
        sized = replace(training, federation=self.attendance.roster.federation(training.federation))
        return server_round(sized, state, self._received(updates, len(state.models)))

    def _updates(self, training: Training, state: State, cohort: list[int]) -> dict[int, ClientUpdate]:
        """The updates of the clients at ``cohort`` that can be merged, by position."""
        number, members, attendance = state.round + 1, self.members, self.attendance
        offered, messages = self._offered(training, state, cohort), {}
        for i, (models, clusters) in offered.items():
            directives = {name: values[clusters] for name, values in state.directives.items()}
            messages[i] = pack_offer(self.offer(number, members[i], models, state.risks[clusters], directives))
        if not any(members[i].waits for i in cohort):
            # Nobody has been heard from since the last deadline: the round waits for all of them.
            for i in cohort:
                members[i].waits = True
        updates, silent = dict[int, ClientUpdate](), set(cohort)
        self._show(number, silent, updates)
        for i, answer in attendance.ask("train", messages, number):
            silent.discard(i)
            models, clusters = offered[i]
            update = self._accepted(number, members[i], answer, models)
            if update is not None:
                updates[i] = update if self.choice != "server" else replace(update, cluster=int(clusters[0]))
            self._show(number, silent, updates)
        for member in sorted((members[i] for i in silent), key=lambda member: member.node or 0):
            member.waits, member.missed = False, member.missed + 1
            reason = f"no reply by the deadline of round {number}"
            attendance.events.add(number, "missed", member.name, member.node, reason)
        return updates

    def _accepted(self, number: int, member: Member, answer: Answer, models: Tensor) -> ClientUpdate | None:
        """The update in an answer to an offer of ``models``; None where none is to be merged, as the events say."""
        attendance = self.attendance
        if answer.content is None:
            attendance.reject(number, member, answer.error, kind="failed" if answer.failed else "rejected")
            return None
        try:
            limits, counts_best = attendance.settings.limits, self.choice == "shares"
            reply = unpack_reply(answer.content, models, limits, counts_best=counts_best)
        except RejectedReplyError as error:
            attendance.reject(number, member, str(error))
            return None
        if isinstance(reply, Refusal):
            attendance.refuse(number, member, reply.reason)
            return None
        return reply

    def _offered(self, training: Training, state: State, cohort: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """The models that each client is sent (K, P), and their clusters (K,), by the client's position."""
        clusters = len(state.models)
        if self.choice != "server" or not cohort:
            return dict.fromkeys(cohort, (state.models, torch.arange(clusters)))
        count = torch.ones(len(cohort), dtype=torch.int64)
        best = torch.ones(len(cohort), clusters, dtype=torch.int64)
        plan = server_plan(training, state, torch.tensor(cohort), count, best)
        (sent,) = plan.trainings
        return {
            i: (sent.initial_params[start][None], cluster[None])
            for i, start, cluster in zip(cohort, sent.init_index, plan.assignment, strict=True)
        }

    def _received(self, updates: Mapping[int, ClientUpdate], clusters: int) -> Received:
        """The updates as a cohort's, in the order of the clients' ids."""
        order = sorted(updates, key=lambda i: self.members[i].id)
        replies, counts = [updates[i] for i in order], torch.eye(clusters, dtype=torch.int64)
        best = [counts[update.cluster] * update.examples if update.best is None else update.best for update in replies]
        return Received(
            clients=torch.tensor(order, dtype=torch.int64),
            sizes=torch.tensor([update.examples for update in replies], dtype=torch.int64),
            best=torch.stack(best) if best else counts[:0],
            ends=torch.stack([update.end for update in replies]) if replies else torch.empty(0, 0),
        )

    def _show(self, number: int, silent: set[int], updates: Mapping[int, ClientUpdate]) -> None:
        trained = {self.members[i].name: update.cluster for i, update in updates.items()}
        self.watch(Progress(number, tuple(sorted(self.members[i].name for i in silent)), trained))
