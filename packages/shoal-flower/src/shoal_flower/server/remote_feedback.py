"""Questions to clients beside training: histograms of losses, and whether a risk is over their limit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from shoal.attacks.queries.loss_histograms import EDGES, accuracies_of
from shoal.audit import RedTeam
from shoal.audit.red_team import of_known
from shoal.control import LimitController
from shoal.control.feedback import shares_of_answers, utilities
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Engine, LocalSGD, RiskEstimate, State
from shoal_flower.messages import RejectedReplyError, check_histograms, with_bounded_shares
from shoal_flower.server.server_rounds import Server
from shoal_flower.wire_codec import pack_models, pack_offer, unpack_histograms, unpack_refusal, unpack_vote

_Reply = TypeVar("_Reply")


@dataclass(frozen=True, eq=False)
class RemoteHistograms:
    """Implements the engine's `RiskEstimator`; every client is sent the one model that it trained last."""

    server: Server
    team: RedTeam

    @property
    def every(self) -> int:
        """Rounds between estimates."""
        return self.team.every

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        """The estimate as `RedTeam.estimate` makes it; a client that does not answer is one without histograms."""
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
        return of_known(estimates, state)


@dataclass(frozen=True, eq=False)
class RemoteCoordinator:
    """Implements the engine's `LimitController`: each client answers one bit, and thresholds stay where they are.

    How good a model is, is measured on the server's shadow set. A prediction before the first round knows of nobody
    who is over a limit.
    """

    server: Server
    law: LimitController

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """The state before the first round; nobody is asked, so there are no answers to be randomised."""
        return replace(self.law, vote_epsilon=None).start(state, federation, engine, stream)

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """The state with new directives; a client that does not answer says nothing."""
        del stream
        risks = self.law.reported_risks(state.risks)
        votes = dict(_replies(self.server, "votes", state, risks, lambda _, records: unpack_vote(records)))
        answers = torch.tensor([*votes.values()], dtype=torch.bool)
        model = state.assignment[torch.tensor([*votes], dtype=torch.int64)]
        shares = shares_of_answers(answers, model, len(state.models), self.law.vote_epsilon)
        return self.law.steered(state, shares, shares, *utilities(state, federation, engine))


def _replies(
    server: Server,
    question: Literal["histograms", "votes"],
    state: State,
    risks: Tensor,
    unpack: Callable[[int, RecordDict], _Reply],
) -> Iterator[tuple[int, _Reply]]:
    """The replies of all clients that are there and have a model, each asked about its own; by position."""
    messages, attendance, packed = dict[int, RecordDict](), server.attendance, dict[int, ArrayRecord]()
    for i, (member, cluster) in enumerate(zip(server.members, state.assignment.tolist(), strict=True)):
        if member.node is not None and cluster >= 0:
            one = torch.tensor([cluster])
            # A vote is about a number; the model stays at the server.
            models = state.models[one] if question == "histograms" else state.models[:0]
            if cluster not in packed:
                packed[cluster] = pack_models(models)
            messages[i] = pack_offer(server.offer(state.round, member, models, risks[one], {}), packed[cluster])
    for i, answer in attendance.ask(question, messages, state.round):
        try:
            if answer.content is None:
                raise RejectedReplyError(answer.error)
            if (refusal := unpack_refusal(answer.content)) is not None:
                attendance.refuse(state.round, server.members[i], f"{question}: {refusal.reason}")
                continue
            yield i, unpack(i, answer.content)
        except RejectedReplyError as error:
            attendance.reject(state.round, server.members[i], f"{question}: {error}")
