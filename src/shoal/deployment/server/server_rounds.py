"""The server's rounds: it offers, waits for what clients chose and trained, and merges what it can."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from flwr.app import RecordDict
from torch import Tensor

from shoal.core.errors import InputError
from shoal.data import Standardizer
from shoal.deployment.flower_records import pack_offer, unpack_identity, unpack_reply
from shoal.deployment.messages import Offer, Refusal, RejectedReplyError
from shoal.deployment.server.events import Events
from shoal.deployment.server.exchange import Answer, Exchange
from shoal.deployment.server.roster import Member, Roster
from shoal.deployment.server.run_settings import RunSettings
from shoal.deployment.supported import Choice
from shoal.engine import ClientUpdate, Received, RoundPlan, State, Training, server_plan, server_round

LOG = logging.getLogger("shoal")


@dataclass(frozen=True)
class Progress:
    """What the server is doing, for a live view: who was asked in a round, and what each answered."""

    round: int
    waiting: tuple[str, ...]
    trained: Mapping[str, int]


@dataclass
class Server:
    """The server of a run: what it knows of its nodes, and how it asks them.

    Args:
        exchange: brings messages to nodes.
        settings: of the run configuration.
        config: what clients are sent of the run's configuration, as TOML.
        choice: who decides which model a client trains.
        roster: the clients.
        events: what happens to them.
        classes: names by number, where clients have data of their own.
        scale: by what columns are standardised, where clients have tables of their own.
        watch: called whenever something changes in a round.
    """

    exchange: Exchange
    settings: RunSettings
    config: str
    choice: Choice
    roster: Roster
    events: Events
    classes: tuple[str, ...] = ()
    scale: Standardizer | None = None
    watch: Callable[[Progress], object] = lambda _: None
    _strangers: set[int] = field(default_factory=set)
    _silent: set[int] = field(default_factory=set)

    def gather(self, number: int) -> None:
        """Wait until enough clients are there for the round ``number``; those that are new join.

        Raises:
            InputError: too few came in time.
        """
        began = time.monotonic()
        while True:
            self._look(number)
            there = sum(each.node is not None for each in self.roster.members)
            if there >= self.settings.min_nodes:
                return
            if time.monotonic() - began > self.settings.wait_timeout:
                raise InputError(
                    f"round {number}: only {there} of 'min-nodes' = {self.settings.min_nodes} clients came within "
                    f"'wait-timeout' = {self.settings.wait_timeout:g} seconds"
                )
            # Too few are there: those that have not answered are waited for again.
            self._silent.clear()
            self.exchange.pause()

    def round(self, training: Training, state: State) -> tuple[State, RoundPlan]:
        """One round with the clients of its cohort that are there; risks are not estimated yet."""
        number = state.round + 1
        cohort = [i for i in training.cohort(number).tolist() if self.roster.members[i].node is not None]
        updates = self._updates(training, state, cohort)
        received, members = self._received(updates, len(state.models)), self.roster.members
        for i, update in updates.items():
            members[i].examples, members[i].trained = update.examples, members[i].trained + 1
        # Sizes are known now: weights and the red team go by them.
        sized = replace(training, federation=self.roster.federation(training.federation))
        return server_round(sized, state, received)

    def reject(
        self, number: int, member: Member, reason: str, kind: Literal["rejected", "failed"] = "rejected"
    ) -> None:
        """Count a reply of round ``number`` that is not taken, and say why."""
        member.rejected += 1
        self.events.add(number, kind, member.name, member.node, reason)

    def _look(self, number: int) -> None:
        """Find out who is there: nodes that are new say which client they have."""
        nodes = set(self.exchange.connected())
        # A node that was turned away may come back mended.
        self._strangers &= nodes
        self._silent &= nodes
        for each in self.roster.members:
            if each.node is not None and each.node not in nodes:
                self.events.add(number, "left", each.name, each.node)
                each.node = None
        new = [node for node in sorted(nodes) if self.roster.by_node(node) is None and node not in self._strangers]
        if not new:
            return
        messages = {node: RecordDict() for node in new}
        seconds = min(60.0, self.settings.round_timeout)
        # One that does not answer is waited for once, and not in each round.
        awaited = set(new) - self._silent
        self._silent.update(new)
        found = list[tuple[int, str, int]]()
        for answer in self.exchange.ask("identify", messages, awaited, seconds, str(number)):
            if answer.late:
                self._heard_late(answer)
            if answer.late or answer.gone:
                continue
            self._silent.discard(answer.node)
            try:
                if answer.content is None:
                    raise RejectedReplyError(answer.error)
                name, partition = unpack_identity(answer.content)
                found.append((-1 if partition is None else partition, name, answer.node))
            except RejectedReplyError as error:
                self._turn_away(number, answer.node, str(error))
        # Whoever answers first: a run that is done once more has its clients in the same order.
        for partition, name, node in sorted(found):
            self._join(number, name, node, None if partition < 0 else partition)

    def _heard_late(self, answer: Answer) -> None:
        """A node has caught up, so that it is waited for again."""
        if answer.gone:
            return
        self._silent.discard(answer.node)
        member = self.roster.by_node(answer.node)
        if member is not None:
            self.roster.members[member].waits = True

    def _join(self, number: int, name: str, node: int, partition: int | None) -> None:
        known = self.roster.by_name(name)
        before = None if known is None else self.roster.members[known]
        if before is not None and before.node is not None and before.waits:
            self._turn_away(number, node, f"the client '{name}' is at node {before.node} already")
            return
        self.roster.join(name, node, partition)
        self.events.add(number, "joined" if before is None else "returned", name, node)

    def _turn_away(self, number: int, node: int, reason: str) -> None:
        """Ask a node no more that is nobody's, or says that it is somebody who is elsewhere."""
        self._strangers.add(node)
        self.events.add(number, "rejected", "unknown", node, reason)

    def _updates(self, training: Training, state: State, cohort: list[int]) -> dict[int, ClientUpdate]:
        """What the clients at ``cohort`` reply that can be merged, by position."""
        number, members = state.round + 1, self.roster.members
        offered = self._offered(training, state, cohort)
        messages, at = dict[int, RecordDict](), dict[int, int]()
        for i in cohort:
            node = members[i].node
            assert node is not None
            messages[node], at[node] = pack_offer(self._offer(state, members[i], *offered[i])), i
        awaited = {node for node, i in at.items() if members[i].waits} or set(at)
        names = {node: members[i].name for node, i in at.items()}
        updates, silent = dict[int, ClientUpdate](), set(at)
        self._show(number, names, silent, updates)
        for answer in self.exchange.ask("train", messages, awaited, self.settings.round_timeout, str(number)):
            i = at.get(answer.node)
            if answer.late:
                self._heard_late(answer)
            if answer.late or answer.gone or i is None:
                continue
            silent.discard(answer.node)
            members[i].waits = True
            update = self._accepted(number, members[i], answer, offered[i][0])
            if update is not None:
                updates[i] = update if self.choice != "server" else replace(update, cluster=int(offered[i][1][0]))
            self._show(number, names, silent, updates)
        for node in sorted(silent):
            member = members[at[node]]
            member.waits, member.missed = False, member.missed + 1
            self.events.add(number, "missed", member.name, node, f"no reply by the deadline of round {number}")
        return updates

    def _accepted(self, number: int, member: Member, answer: Answer, offered: Tensor) -> ClientUpdate | None:
        """The update in an answer; None where there is none to merge, which the events say."""
        if answer.content is None:
            self.reject(number, member, answer.error, kind="failed")
            return None
        try:
            shares = self.choice == "shares"
            reply = unpack_reply(answer.content, offered, self.settings.limits, counts_best=shares)
        except RejectedReplyError as error:
            self.reject(number, member, str(error))
            return None
        if isinstance(reply, Refusal):
            member.refused += 1
            self.events.add(number, "refused", member.name, answer.node, reply.reason)
            return None
        return reply

    def _offered(self, training: Training, state: State, cohort: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """For each client the models that it is sent (K, P), and of which clusters they are (K,)."""
        everything = state.models, torch.arange(len(state.models))
        if self.choice != "server" or not cohort:
            return dict.fromkeys(cohort, everything)
        some = torch.tensor(cohort)
        count = torch.ones(len(some), dtype=torch.int64)
        plan = server_plan(training, state, some, count, torch.ones(len(some), len(state.models), dtype=torch.int64))
        (sent,) = plan.trainings
        return {
            i: (sent.initial_params[start][None], cluster[None])
            for i, start, cluster in zip(cohort, sent.init_index, plan.assignment, strict=True)
        }

    def _offer(self, state: State, member: Member, models: Tensor, clusters: Tensor) -> Offer:
        directives = {name: each[clusters] for name, each in state.directives.items()}
        return self.offer(state.round + 1, member, models, state.risks[clusters], directives)

    def offer(
        self, number: int, member: Member, models: Tensor, risks: Tensor, directives: Mapping[str, Tensor]
    ) -> Offer:
        """What a member is sent in the round ``number``."""
        return Offer(number, member.id, self.config, models, risks, directives, self.classes, self.scale)

    def _received(self, updates: Mapping[int, ClientUpdate], clusters: int) -> Received:
        """The updates as a cohort's, in the order of the clients' ids."""
        order = sorted(updates, key=lambda i: self.roster.members[i].id)
        best = torch.zeros(len(order), clusters, dtype=torch.int64)
        for position, i in enumerate(order):
            update = updates[i]
            if update.best is None:
                best[position, update.cluster] = update.examples
            else:
                best[position] = update.best
        sizes = torch.tensor([updates[i].examples for i in order], dtype=torch.int64)
        ends = torch.stack([updates[i].end for i in order]) if order else torch.empty(0, 0)
        return Received(torch.tensor(order, dtype=torch.int64), sizes, best, ends)

    def _show(
        self, number: int, names: Mapping[int, str], silent: set[int], updates: Mapping[int, ClientUpdate]
    ) -> None:
        trained = {self.roster.members[i].name: update.cluster for i, update in updates.items()}
        self.watch(Progress(number, tuple(sorted(names[node] for node in silent)), trained))
