"""What an honest-but-curious server finds in the updates of single clients.

A client's update says which labels and groups its examples have, and an attack would be right by that alone were its
non-members of another mix: with 30 examples of ten labels, how many the client has of a record's label has an AUC of
0.651 against records of all labels alike. So non-members are weighted to the mix of the client's members, for client i:

    weight of a non-member x = (members of i with x's group and label) / (non-members with x's group and label)

A score that knows no more of a record than its group and label then has an AUC of 0.5, whatever it knows of the client.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import nan

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from shoal.attacks import (
    ClusterIdentity,
    FedMIACosine,
    FedMIALoss,
    GradCosine,
    GradDifference,
    GroupInference,
    Guesses,
    IdentityGuesses,
    PreferenceInference,
    SourceInference,
    UpdateAttack,
    UpdateScores,
)
from shoal.attacks.updates.source_inference import client_groups
from shoal.attacks.updates.update_scores import NOBODY
from shoal.audit.audit import ATTACK_COLUMNS, RECORD_COLUMNS, Audit, attack_row, scope_rows
from shoal.audit.reconstruction_audit import RECONSTRUCTION, reconstruction_metrics
from shoal.audit.records import SERVER, Floats, RecordTable, matching_weights, measure, strongest
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.data.preferences import Preferences
from shoal.engine import RoundUpdates
from shoal.metrics import MembershipMetrics

UPDATE_ATTACKS: tuple[UpdateAttack, ...] = (FedMIALoss(), FedMIACosine(), GradCosine(), GradDifference())
"""The attacks on updates that an audit asks."""

OTHERS = "-others"
"""What follows an attack's name where non-members are other clients' examples, not records that nobody trained on."""


@dataclass(frozen=True)
class UpdateAudit:
    """The outcome of an attack on the updates of every client in turn: M records asked of each of N clients.

    Args:
        unused: members against records that nobody trained on, the comparison that says what is exposed.
        others: members against other clients' records. In the null of FedMIA these have their owner, a member of its
            own update, so they look less like members than records that nobody trained on.
        by_client: `unused` of each client, by its id.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import GradCosine, UpdateScores
        >>> from shoal.audit import audit_updates
        >>> fit, zero = np.eye(4, 8)[None], np.zeros(8, dtype=np.int64)  # one round, four clients, their records first
        >>> owner, clients = np.array([0, 1, 2, 3, -1, -1, -1, -1]), np.arange(4)
        >>> scores = UpdateScores(np.array([1]), clients, zero[None, :4], -fit, fit, fit, zero, owner, zero, ("all",))
        >>> audit = audit_updates(GradCosine(), scores)
        >>> sorted(audit.by_client), audit.unused.members, audit.others.auc
        ([0, 1, 2, 3], 4, 1.0)
    """

    unused: MembershipMetrics
    others: MembershipMetrics
    by_client: dict[int, MembershipMetrics]


def audit_updates(attack: UpdateAttack, scores: UpdateScores, group: str | None = None) -> UpdateAudit:
    """Attack every client that was seen, or those of one group.

    A client's non-members have the mix of groups and labels of its members, by their weights; a member whose group and
    label no non-member has is left out, and ``members`` counts the others. In a regression groups alone must agree.
    A record that nobody trained on is asked of many clients, so intervals over all clients are somewhat too narrow.

    Args:
        attack: on the updates.
        scores: of recorded rounds.
        group: name of a group; None: all clients.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import GradCosine, UpdateScores
        >>> from shoal.audit import audit_updates
        >>> fit, zero = np.eye(4, 8)[None], np.zeros(8, dtype=np.int64)  # one round, four clients, their records first
        >>> owner, clients = np.array([0, 1, 2, 3, -1, -1, -1, -1]), np.arange(4)
        >>> scores = UpdateScores(np.array([1]), clients, zero[None, :4], -fit, fit, fit, zero, owner, zero, ("all",))
        >>> audit_updates(GradCosine(), scores).unused.auc
        1.0
    """
    return _audits(attack, scores, [group])[0]


def _audits(attack: UpdateAttack, scores: UpdateScores, groups: Sequence[str | None]) -> list[UpdateAudit]:
    """The audits of several groups."""
    score, audits = attack.score(scores), []
    tables = [_records(attack, score, scores, others=others) for others in (False, True)]
    for group in groups:
        clients = _clients(scores, group)
        unused, others = (table.take(np.isin(table.model, clients)) for table in tables)
        by_client = measure(unused, by="model")
        nothing = measure(unused.take(np.empty(0, dtype=np.int64)))
        by_client = {client: by_client.get(client, nothing) for client in clients.tolist()}
        audits.append(UpdateAudit(measure(unused), measure(others), by_client))
    return audits


def _clients(scores: UpdateScores, group: str | None) -> NDArray[np.int64]:
    """The ids of the clients with records, or of those with records of a group."""
    owner = scores.client if group is None else scores.client[scores.group == scores.groups.index(group)]
    return scores.clients[np.unique(owner[owner != NOBODY])]


def _records(attack: UpdateAttack, score: Floats, scores: UpdateScores, *, others: bool) -> RecordTable:
    """The records that each client's update is asked about by their ``score`` (N, M): its own, and those of nobody or
    of ``others``, weighted to the groups and labels of its own.
    """
    kind = scores.group * (scores.label.max() + 1) + scores.label
    owner = np.where(scores.client == NOBODY, NOBODY, scores.clients[scores.client])
    tables = []
    for i, row in enumerate(score):
        own, seen = scores.client == i, ~np.isnan(row)
        member = own & seen
        non_member = (scores.client != NOBODY if others else scores.client == NOBODY) & ~own & seen
        weight = np.zeros(len(row))
        weight[member] = np.isin(kind[member], kind[non_member])
        weight[non_member] = matching_weights(np.bincount(kind[member], minlength=kind.max() + 1), kind[non_member])
        rows = np.flatnonzero(weight)
        table = RecordTable.from_columns(
            row[rows],
            member[rows],
            threshold=attack.threshold,
            weight=weight[rows],
            record=rows,
            client=owner[rows],
            group=scores.group[rows],
            model=scores.clients[i],
            attack=attack.name + (OTHERS if others else ""),
            view=attack.view,
        )
        tables.append(table)
    return RecordTable.join(tables)


def without_server(audit: Audit) -> Audit:
    """An audit of a run of which no round was recorded: what that leaves out of choices and released models."""
    reason = "needs recorded rounds, which the run has not (record.updates)"
    names = (ClusterIdentity().name, PreferenceInference().name, RECONSTRUCTION)
    return replace(audit, omitted={**audit.omitted, **dict.fromkeys(names, reason)})


def audit_server(
    scores: UpdateScores,
    rounds: Iterable[RoundUpdates] = (),
    preferences: Mapping[int, tuple[float, float]] | None = None,
) -> Audit:
    """Attack every client whose updates were recorded.

    In `Audit.attacks` each attack stands twice: against records that nobody trained on, and, with `OTHERS` in its name,
    against other clients' examples. `Audit.guesses` says whose a record is guessed to be ("source-inference"; and
    "source-inference-in-cluster", once the cluster is known), and of which group a client, from the cluster of its last
    round ("group-inference") and from those of all recorded rounds ("cluster-identity"), from which it is also guessed
    which half of its group it is of, the stricter or the laxer ("preference-inference"); and how near updates that are
    reconstructed from the models alone come to what was sent ("reconstruction").

    Args:
        scores: of the recorded rounds.
        rounds: the same rounds, in order, for the reconstruction; without them there is none.
        preferences: threshold and beta of each client, by its id; None: unknown, and not inferred.

    Raises:
        InputError: no record of a client whose updates were recorded, or none of its group and label that nobody
            trained on.
    """
    owned = scores.client >= 0
    require(bool(owned.any()), "no record is of a client whose updates were recorded")
    require(
        not owned.all(),
        "no record is nobody's; members need records that nobody trained on beside them",
    )
    kinds = [{*zip(scores.group[of].tolist(), scores.label[of].tolist(), strict=True)} for of in (owned, ~owned)]
    require(
        not kinds[0].isdisjoint(kinds[1]),
        "no record that nobody trained on has the group and label of a client's; an update tells both, so members need "
        "such records beside them",
    )
    groups = [None, *(scores.groups[g] for g in np.unique(scores.group[owned]))]
    found = {attack.name: _audits(attack, scores, groups) for attack in UPDATE_ATTACKS}
    rows, views = [], {attack.name: attack.view for attack in UPDATE_ATTACKS}
    for i, group in enumerate(groups):
        place = ("all", "all") if group is None else ("group", group)
        against_nobody = scope_rows(*place, {name: audits[i].unused for name, audits in found.items()}, views)
        for row, (name, audits) in zip(against_nobody, found.items(), strict=True):
            others = attack_row(*place, name + OTHERS, SERVER, audits[i].others, chosen=False, strongest=False)
            rows += [row, others]
    best, _ = strongest({name: audits[0].unused for name, audits in found.items()})
    rows += [
        attack_row("client", str(client), best, SERVER, metrics, chosen=best == next(iter(found)), strongest=True)
        for client, metrics in found[best][0].by_client.items()
    ]
    guesses = {
        "source-inference": SourceInference().guess(scores).averaged,
        "source-inference-in-cluster": SourceInference(among="cluster").guess(scores).averaged,
        "group-inference": GroupInference().guess(scores),
    }
    flat = {f"{name}.{key}": value for name, guess in guesses.items() for key, value in _flat(guess).items()}
    inferred = (_cluster_identity(scores), _preferences(scores, preferences), reconstruction_metrics(scores, rounds))
    return Audit(
        attacks=pd.DataFrame(rows, columns=[*ATTACK_COLUMNS]),
        records=pd.DataFrame(columns=[*RECORD_COLUMNS]),
        references=0,
        members=int(owned.sum()),
        non_members=int((~owned).sum()),
        empirical_epsilon=nan,
        delta=nan,
        omitted={name: why for _, omitted in inferred for name, why in omitted.items()},
        guesses={key: value for key, value in flat.items() if not np.isnan(value)}
        | {key: value for figures, _ in inferred for key, value in figures.items()},
    )


def with_server(audit: Audit, server: Audit) -> Audit:
    """An audit of released models, and what the server finds in the updates of the same run.

    The server's attack decides on a scope where the lower end of its interval is above 0.5 and the other's figure.
    """
    rows = pd.concat([audit.attacks, server.attacks], ignore_index=True)
    rows["chosen"] &= ~rows.duplicated(["scope", "name", "chosen"])
    for _, decides in rows[rows["strongest"].astype(bool)].groupby(["scope", "name"]):
        if len(decides) == 2:
            outsider, updates = decides.index
            stronger = decides["accuracy.low"][updates] > max(0.5, decides["accuracy"][outsider])
            rows.loc[outsider if stronger else updates, "strongest"] = False
    return replace(
        audit,
        attacks=rows,
        omitted={**audit.omitted, **server.omitted},
        guesses={**audit.guesses, **server.guesses},
    )


def _cluster_identity(scores: UpdateScores) -> tuple[dict[str, float], dict[str, str]]:
    """The keys and values of audit.json on the choices of all recorded rounds; or why there are none."""
    attack = ClusterIdentity()
    group = client_groups(scores)
    return _guessed(attack.name, partial(attack.guess, scores.assignment, group, scores.clients))


def _preferences(
    scores: UpdateScores, preferences: Mapping[int, tuple[float, float]] | None
) -> tuple[dict[str, float], dict[str, str]]:
    """The same on whether a client is of the stricter half of its group."""
    attack = PreferenceInference()
    if preferences is None:
        return {}, {attack.name: "needs the clients' thresholds, the truth that guesses are judged by"}
    known = torch.tensor([preferences[client] for client in scores.clients.tolist()], dtype=torch.float64)
    tolerated, group = Preferences(known[:, 0], known[:, 1]), client_groups(scores)
    return _guessed(attack.name, partial(attack.guess, scores.assignment, group, tolerated, scores.clients))


def _guessed(name: str, guess: Callable[[Stream], IdentityGuesses]) -> tuple[dict[str, float], dict[str, str]]:
    """The keys and values of audit.json of an attack on choices; or why there are none."""
    try:
        # The same halves whoever asks, so that the audits of a run and of its trace agree.
        found = guess(Stream(0)(name))
    except InputError as error:
        return {}, {name: str(error)}
    values = {"accuracy": found.accuracy, "accuracy.low": found.low, "accuracy.high": found.high}
    values |= {"last_round": found.last_round, "chance": found.chance}
    return {f"{name}.{key}": value for key, value in values.items()}, {}


def _flat(guess: Guesses) -> dict[str, float]:
    return {"accuracy": guess.accuracy, "accuracy.low": guess.low, "accuracy.high": guess.high, "chance": guess.chance}
