"""The red team: the server attacks each model and says how exposed its members are.

Source: IFCA-MIR, Algorithm 1 line 6 and Algorithm 2, which does not say on which data the accuracy is computed.
The server holds no members, so there are three answers, each an estimator:

- "shadow": on the shadow models themselves, each left out in turn while the attack is fitted on the others.
- "federated": the server sends the attack; each client scores its own members and its own hold-out examples
  on the model it chose, and only counts come back.
- "audit": on all members and on test examples, which only a simulator knows.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.attacks.audit import MembershipAudit, evaluate_models
from shoal.attacks.membership import FittedAttack, MembershipAttack, Records
from shoal.attacks.shadow_models import ShadowModels
from shoal.attacks.shokri import ShadowModelAttack
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.engine import Engine, LocalSGD, State
from shoal.metrics import balanced_accuracy

Estimator = Literal["shadow", "federated", "audit"]


@dataclass(frozen=True)
class RedTeam:
    """Estimates each model's risk every so many rounds.

    Args:
        every: rounds between estimates (IFCA-MIR: 5); 0: never.
        estimator: "shadow", "federated" or "audit".
        attack: what is fitted on the shadow models' records.
        shadow_models: how shadow models are trained.
    """

    every: int = 5
    estimator: Estimator = "shadow"
    attack: MembershipAttack = ShadowModelAttack()
    shadow_models: ShadowModels = ShadowModels()

    def __post_init__(self) -> None:
        require(self.every >= 0, f"'red_team.every' must be at least 0; got {self.every}")

    def risks(self, state: State, federation: Federation, engine: Engine, local: LocalSGD, stream: Stream) -> Tensor:
        """(K,) float64, membership-inference accuracy by model.

        A model without clients keeps its last estimate where the estimator needs members.
        """
        if self.estimator == "shadow":
            records = self.shadow_models.train(state, federation, engine, local, stream("shadow models"))
            estimates = [self._left_out(each, stream("attack", k)) for k, each in enumerate(records)]
            return torch.tensor(estimates, dtype=torch.float64)
        attacks, _ = self.fit(state, federation, engine, local, stream)
        if self.estimator == "federated":
            estimates = [_counted(k, attacks[k], state, federation, engine) for k in range(len(attacks))]
        else:
            audit = MembershipAudit.of(
                evaluate_models(state.models, state.assignment, federation, engine), attacks, federation
            )
            estimates = [audit.of_cluster(k, federation).accuracy for k in range(len(attacks))]
        measured = torch.tensor(estimates, dtype=torch.float64)
        return torch.where(measured.isnan(), state.risks, measured)

    def fit(
        self, state: State, federation: Federation, engine: Engine, local: LocalSGD, stream: Stream
    ) -> tuple[list[FittedAttack], list[Records]]:
        """The attack on each of the K models of ``state``, and the records each was fitted on."""
        if self.attack.learns:
            records = self.shadow_models.train(state, federation, engine, local, stream("shadow models"))
        else:
            records = [Records.none()] * len(state.models)
        return [self.attack.fit(each, stream("attack", k)) for k, each in enumerate(records)], records

    def _left_out(self, records: Records, stream: Stream) -> float:
        """Balanced accuracy on each shadow model of the attack fitted on the others; with one, on halves of it."""
        fold = records.shadow
        if int(fold.max()) == 0:
            fold = torch.arange(len(records)) % 2
        accuracies = []
        for left_out in fold.unique().tolist():
            attack = self.attack.fit(records.where(fold != left_out), stream("left out", left_out))
            seen = records.where(fold == left_out)
            said = attack.score(seen.outputs, seen.labels) > attack.threshold
            accuracies.append(balanced_accuracy(said, seen.member.numpy()))
        return float(np.mean(accuracies))


def _counted(k: int, attack: FittedAttack, state: State, federation: Federation, engine: Engine) -> float:
    """The federated estimate: counts of rightly called members and hold-out examples, summed over clients."""
    require(
        len(federation.holdout.indices) > 0,
        "'red_team.estimator' = \"federated\" needs hold-out examples; set 'data.holdout_examples' to at least 1",
    )
    right, asked = np.zeros(2), np.zeros(2)
    clients = torch.nonzero(state.assignment == k).flatten()
    for column, shards in enumerate((federation.clients, federation.holdout)):
        theirs = shards.take(clients)
        if len(theirs.indices) == 0:
            return float("nan")
        rows = theirs.indices.to(theirs.y.device)
        outputs = engine.outputs_at(state.models[k], theirs.x, rows).cpu()
        said_member = attack.score(outputs, theirs.y[rows].cpu()) > attack.threshold
        right[column] = (said_member == (column == 0)).sum()
        asked[column] = len(said_member)
    return float((right / asked).mean())
