"""The red team's "histogram" estimator where clients are on other machines: the server asks, and each client counts."""

from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from shoal.attacks import RedTeam
from shoal.attacks.loss_histograms import EDGES, accuracies_of
from shoal.attacks.red_team import known
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.deployment.messages import Offer, RejectedReplyError
from shoal.deployment.records import pack_offer, unpack_counts
from shoal.deployment.server import Server
from shoal.engine import Engine, LocalSGD, State


@dataclass(frozen=True, eq=False)
class RemoteHistograms:
    """Implements the engine's `RiskEstimator`; every client is sent the one model that it trained last.

    Args:
        server: asks the clients.
        team: whose attack and period it is.
    """

    server: Server
    team: RedTeam

    @property
    def every(self) -> int:
        """Rounds between estimates."""
        return self.team.every

    def risks(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> Tensor:
        """See `RedTeam.risks`; a client that does not answer counts as one without histograms."""
        del local, engine
        counts = np.zeros((len(federation), 2, len(EDGES) + 1))
        messages, at, server = dict[int, RecordDict](), dict[int, int](), self.server
        for i, (member, cluster) in enumerate(zip(server.roster.members, state.assignment.tolist(), strict=True)):
            if member.node is not None and cluster >= 0:
                one = torch.tensor([cluster])
                offer = Offer(
                    state.round, member.id, server.config, state.models[one], state.risks[one], {}, server.classes
                )
                messages[member.node], at[member.node] = pack_offer(offer), i
        awaited = {node for node, i in at.items() if server.roster.members[i].waits}
        seconds, group = server.settings.round_timeout, f"{state.round}-histograms"
        for answer in server.exchange.ask("histograms", messages, awaited, seconds, group):
            if answer.late:
                continue
            member = server.roster.members[at[answer.node]]
            try:
                if answer.content is None:
                    raise RejectedReplyError(answer.error)
                counts[at[answer.node]] = unpack_counts(answer.content, len(EDGES) + 1)
            except RejectedReplyError as error:
                server.events.add(state.round, "rejected", member.name, answer.node, f"histograms: {error}")
        found = accuracies_of(counts, state.assignment, federation.ids, len(state.models), stream("histograms"))
        return known(found, state)
