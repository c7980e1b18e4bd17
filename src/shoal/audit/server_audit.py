"""What an honest-but-curious server finds in the updates of single clients."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import nan
from typing import Any

import numpy as np
import pandas as pd
import torch

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
from shoal.audit.attack_metrics import strongest
from shoal.audit.audit import ATTACK_COLUMNS, RECORD_COLUMNS, Audit, attack_row
from shoal.audit.reconstruction_metrics import RECONSTRUCTION, reconstruction_metrics
from shoal.audit.records import SERVER
from shoal.audit.update_audit import audit_updates
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.data.preferences import Preferences
from shoal.engine import RoundUpdates
from shoal.metrics import MembershipMetrics

UPDATE_ATTACKS: tuple[UpdateAttack, ...] = (FedMIALoss(), FedMIACosine(), GradCosine(), GradDifference())
"""The attacks on updates that an audit asks."""

OTHERS = "-others"
"""What follows an attack's name where non-members are other clients' examples, not records that nobody trained on."""


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
    groups = [scores.groups[g] for g in np.unique(scores.group[owned])]
    rows, best = list[dict[str, Any]](), ""
    by_client = dict[str, dict[int, MembershipMetrics]]()
    for scope, name in (("all", None), *(("group", group) for group in groups)):
        found = {attack.name: audit_updates(attack, scores, name) for attack in UPDATE_ATTACKS}
        decides, _ = strongest({attack: each.unused for attack, each in found.items()})
        if name is None:
            best, by_client = decides, {attack: each.by_client for attack, each in found.items()}
        for attack, each in found.items():
            place = scope, name or "all"
            chosen, decisive = attack == next(iter(found)), attack == decides
            rows.append(attack_row(SERVER, attack, *place, each.unused, chosen=chosen, strongest=decisive))
            rows.append(attack_row(SERVER, attack + OTHERS, *place, each.others, chosen=False, strongest=False))
    rows += [
        attack_row(SERVER, best, "client", str(client), found, chosen=best == next(iter(by_client)), strongest=True)
        for client, found in by_client[best].items()
    ]
    guesses = {
        "source-inference": SourceInference().guess(scores).averaged,
        "source-inference-in-cluster": SourceInference(among="cluster").guess(scores).averaged,
        "group-inference": GroupInference().guess(scores),
    }
    flat = {f"{name}.{key}": value for name, guess in guesses.items() for key, value in _flat(guess).items()}
    found = (_cluster_identity(scores), _preferences(scores, preferences), reconstruction_metrics(scores, rounds))
    return Audit(
        attacks=pd.DataFrame(rows, columns=[*ATTACK_COLUMNS]),
        records=pd.DataFrame(columns=[*RECORD_COLUMNS]),
        references=0,
        members=int(owned.sum()),
        non_members=int((~owned).sum()),
        empirical_epsilon=nan,
        delta=nan,
        omitted={name: why for _, omitted in found for name, why in omitted.items()},
        guesses={key: value for key, value in flat.items() if not np.isnan(value)}
        | {key: value for figures, _ in found for key, value in figures.items()},
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
