"""Whose examples are members of which model at the end of a run."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.engine import Deployed, PersonalModels, State


@dataclass(frozen=True, eq=False)
class Membership:
    """Which clients trained which of the S deployed models.

    Args:
        trainers: (N, S) bool, the clients whose examples are members of each model.
        latest: (N,) int64, the model that each client trained last; -1: none, or too long ago to be its member.
    """

    trainers: Tensor
    latest: Tensor

    @staticmethod
    def of_clusters(state: State, within: int) -> "Membership":
        """That of the K models of the clusters.

        Args:
            state: after the last round.
            within: how many rounds before a model's last training somebody who trained it still is a member.
        """
        trainers = state.trainers(within)
        known = state.assignment.clamp(min=0)
        member = (state.assignment >= 0) & trainers[torch.arange(len(known)), known]
        return Membership(trainers, torch.where(member, state.assignment, -1))

    @staticmethod
    def of_deployed(state: State, deployed: Deployed, within: int) -> "Membership":
        """That of the models that clients use: the clusters', or personal ones.

        Of several models that a client trained last, as FedEM's clients train all, the latest is the one that it uses.
        """
        if not is_personal(deployed):
            members, number = Membership.of_clusters(state, within), torch.arange(len(state.assignment))
            if not state.trained.numel():
                return members
            used = state.trained[number, deployed.model]
            last = (used > 0) & (used == state.trained.amax(dim=1)) & members.trainers[number, deployed.model]
            return Membership(members.trainers, torch.where(last, deployed.model, members.latest))
        # Where nothing is sent, as in local training, no training is recorded, and who was there has trained. Who
        # fine-tunes has trained, also if it took part in no round.
        took_part = (state.trained > 0).any(dim=1) if bool(state.trained.any()) else state.assignment >= 0
        took_part = took_part | bool(deployed.fine_tuning)
        number = torch.arange(len(took_part))
        return Membership(torch.diag(took_part), torch.where(took_part, number, -1))


def is_personal(deployed: Deployed) -> bool:
    """Whether each client has a model of its own, and not a cluster's of which it happens to be the only client."""
    own = torch.equal(deployed.model, torch.arange(len(deployed.models)))
    return isinstance(deployed.models, PersonalModels) or (own and not torch.equal(deployed.model, deployed.assignment))
