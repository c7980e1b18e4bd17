"""Attacks of an honest-but-curious server on clients' updates.

A client's update reveals the groups and labels of the client's examples. To attack client i, non-members are weighted
to the groups and labels of the client's members:

    weight of a non-member x = (members of i with x's group and label) / (non-members with x's group and label)

With weighted non-members, a score that depends only on the client, group and label has an AUC of 0.5.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    ReferenceAttack,
    SourceInference,
    UpdateAttack,
    UpdateScores,
)
from shoal.attacks.updates.source_inference import client_groups
from shoal.attacks.updates.update_scores import NOBODY
from shoal.audit.attacked_records import REFERENCE_ATTACKS
from shoal.audit.audit import RECORD_COLUMNS, Audit, attack_row, attack_table, scope_rows
from shoal.audit.record_table import (
    AGAINST_CLIENTS,
    CHOSEN_OF_VIEW,
    JOINT_OF_VIEW,
    SERVER,
    RecordTable,
    matching_weights,
    measure,
    strongest,
)
from shoal.core.errors import InputError, describe, require
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.data.preferences import VIEWS, Preferences, View
from shoal.metrics import MembershipMetrics
from shoal.metrics.intervals import Bools, Floats, Ints

UPDATE_ATTACKS: tuple[UpdateAttack, ...] = (FedMIALoss(), FedMIACosine(), GradCosine(), GradDifference())
"""The default attacks of an audit on updates."""


@dataclass(frozen=True, eq=False)
class ScoredUpdates:
    """An attack on updates with precomputed scores, for attacks that need more than `UpdateScores`.

    Args:
        name, title, view: the attack's name, title and view; see `UpdateAttack`.
        values: the scores per client and record of `UpdateScores`, (N, M). NaN marks a record without a score on the
            client's update.
        threshold: the threshold per client and record, (N, M).
        exact: whether the attack claims certainty about a record's membership, per client and record, (N, M).
    """

    name: str
    title: str
    view: View
    values: Floats
    threshold: Floats
    exact: Bools
    __repr__ = one_line

    def score(self, scores: UpdateScores) -> Floats:
        """Return the precomputed scores, (N, M)."""
        del scores
        return self.values


AllAttacks = tuple[tuple[ReferenceAttack, ...], tuple[UpdateAttack, ...]]
"""Attacks on scores, and attacks on updates."""


def all_attacks(further: Sequence[object] = ()) -> AllAttacks:
    """Return the attacks on scores and the attacks on updates: the default attacks, followed by ``further``.

    Raises:
        InputError: a user-defined attack is neither a `ReferenceAttack` nor an `UpdateAttack`, or has an invalid name,
            a duplicate name or an unknown view.
    """
    on_scores, on_updates = [*REFERENCE_ATTACKS], [*UPDATE_ATTACKS]
    for attack in further:
        require(not isinstance(attack, type), f"'attacks' must hold instances, such as Mine() (got {describe(attack)})")
        name = getattr(attack, "name", "")
        names = [listed.name for listed in (*on_scores, *on_updates)]
        require(name not in names, f"'attacks' must have unique names (got '{name}' twice)")
        if isinstance(attack, ReferenceAttack):
            on_scores.append(attack)
        elif isinstance(attack, UpdateAttack):
            on_updates.append(attack)
        else:
            raise InputError(
                f"'attacks' must hold a ReferenceAttack or an UpdateAttack (got {describe(attack)}); a ReferenceAttack "
                "has 'name', 'title', 'view', 'least' and 'scores', and an UpdateAttack has 'name', 'title', 'view', "
                "'threshold' and 'score'"
            )
        plain = re.fullmatch(r"[\w-]+", str(name)) is not None
        require(plain, f"an attack's 'name' must consist of letters, digits, '-' and '_' (got '{name}')")
        views = ", ".join(VIEWS)
        require(attack.view in VIEWS, f"attack '{name}': 'view' must be one of {views} (got {attack.view!r})")
    return tuple(on_scores), tuple(on_updates)


@dataclass(frozen=True)
class UpdateAudit:
    """The metrics of one attack on the updates of every client.

    Args:
        unused: the metrics with non-members that no client trained on; these metrics decide the exposure.
        other_clients: the metrics with other clients' records as non-members. With other clients' records, FedMIA
            appears stronger, because its null distribution contains the owner's update.
        by_client: the metrics of ``unused`` for each client's members, by the client's id.
    """

    unused: MembershipMetrics
    other_clients: MembershipMetrics
    by_client: dict[int, MembershipMetrics]


def audit_updates(attack: UpdateAttack, scores: UpdateScores, group: str | None = None) -> UpdateAudit:
    """Attack the updates of all recorded clients, or of the clients that hold records of a ``group``.

    Members without a non-member of the same group and label are left out. Intervals over all clients are slightly too
    narrow, because each non-member is tested against many clients.

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
    return _audit(_tables(attack, scores), scores, group)


def _tables(attack: UpdateAttack | ScoredUpdates, scores: UpdateScores) -> tuple[RecordTable, RecordTable]:
    """Return an attack's rows for all clients, with unused records and with other clients' records as non-members."""
    score = attack.score(scores)
    return _records(attack, score, scores, other_clients=False), _records(attack, score, scores, other_clients=True)


def _audit(tables: tuple[RecordTable, RecordTable], scores: UpdateScores, group: str | None) -> UpdateAudit:
    clients = _clients(scores, group)
    unused, other_clients = (table.take(np.isin(table.model, clients)) for table in tables)
    nothing = measure(unused.take(np.empty(0, dtype=np.int64)))
    by_client = {**dict.fromkeys(clients.tolist(), nothing), **measure(unused, by="model")}
    return UpdateAudit(measure(unused), measure(other_clients), by_client)


def _clients(scores: UpdateScores, group: str | None) -> Ints:
    """Return the ids of the clients with records, or with records of a ``group``."""
    owner = scores.client if group is None else scores.client[scores.group == scores.groups.index(group)]
    return scores.clients[np.unique(owner[owner != NOBODY])]


def _records(
    attack: UpdateAttack | ScoredUpdates, score: Floats, scores: UpdateScores, *, other_clients: bool
) -> RecordTable:
    """Return each client's members and weighted non-members, with their ``score`` (N, M)."""
    kind = scores.group * (scores.label.max() + 1) + scores.label
    owner = np.where(scores.client == NOBODY, NOBODY, scores.clients[scores.client])
    tables, thresholds = [], np.broadcast_to(attack.threshold, score.shape)
    exact = np.broadcast_to(attack.exact if isinstance(attack, ScoredUpdates) else np.False_, score.shape)
    for i, row in enumerate(score):
        trained, seen = scores.client == i, ~np.isnan(row)
        member = trained & seen
        non_member = (scores.client != NOBODY if other_clients else scores.client == NOBODY) & ~trained & seen
        weight = np.zeros(len(row))
        weight[member] = np.isin(kind[member], kind[non_member])
        weight[non_member] = matching_weights(np.bincount(kind[member], minlength=kind.max() + 1), kind[non_member])
        rows = np.flatnonzero(weight)
        table = RecordTable.from_columns(
            row[rows],
            member[rows],
            threshold=thresholds[i, rows],
            weight=weight[rows],
            record=rows,
            client=owner[rows],
            group=scores.group[rows],
            model=scores.clients[i],
            exact=exact[i, rows],
        )
        tables.append(table)
    return RecordTable.join(tables)


WITHOUT_ROUNDS: Mapping[str, str] = dict.fromkeys(
    (ClusterIdentity().name, PreferenceInference().name),
    "needs recorded rounds (record.updates)",
)
"""Reasons for missing guesses in an audit without recorded rounds, by name."""


def audit_server(
    scores: UpdateScores,
    preferences: Mapping[int, tuple[float, float]] | None = None,
    *,
    attacks: Sequence[UpdateAttack | ScoredUpdates] = UPDATE_ATTACKS,
) -> Audit:
    """Attack every client whose updates were recorded.

    In `Audit.attacks`, each attack of the server has two rows per scope. With the suffix `AGAINST_CLIENTS`, the
    non-members are other clients' examples; otherwise no client trained on them. `Audit.guesses` holds the accuracy of
    guessing each record's client, each client's group, and which clients of a group have stricter limits.

    Args:
        preferences: each client's threshold and beta, by the client's id, or ``None`` if preferences are unknown.

    Raises:
        InputError: no record belongs to a recorded client, or no unused record has the group and label of a recorded
            client's record.
    """
    owned = scores.client >= 0
    require(bool(owned.any()), "no record belongs to a client with recorded updates")
    require(not owned.all(), "every record belongs to a client; add records that no client trained on, as non-members")
    kinds = [{*zip(scores.group[of].tolist(), scores.label[of].tolist(), strict=True)} for of in (owned, ~owned)]
    require(
        not kinds[0].isdisjoint(kinds[1]),
        "no non-member has the group and label of a client's record; add non-members with the groups and labels of the "
        "clients' records",
    )
    tables = {attack.name: _tables(attack, scores) for attack in attacks}
    views: dict[str, View] = {attack.name: attack.view for attack in attacks}
    everyone, rows = dict[str, UpdateAudit](), list[dict[str, Any]]()
    for group in (None, *(scores.groups[g] for g in np.unique(scores.group[owned]))):
        scope = ("all", "all") if group is None else ("group", group)
        audits = {name: _audit(of_attack, scores, group) for name, of_attack in tables.items()}
        everyone = everyone or audits
        for row in scope_rows(*scope, {name: audit.unused for name, audit in audits.items()}, views):
            rows.append(row)
            if row["view"] == SERVER:
                key, others = row["attack"] + AGAINST_CLIENTS, audits[row["attack"]].other_clients
                rows.append(attack_row(*scope, key, SERVER, others, chosen=False, strongest=False))
    best, _ = strongest({name: audit.unused for name, audit in everyone.items()})
    of_client = {"chosen": best == attacks[0].name, "strongest": True}
    rows += [
        attack_row("client", str(client), best, views[best], metrics, **of_client)
        for client, metrics in everyone[best].by_client.items()
    ]
    titles = {attack.name: attack.title for attack in attacks}
    titles |= {name + AGAINST_CLIENTS: f"{title}, other clients" for name, title in titles.items()}
    guesses, omitted = _guesses(scores, preferences)
    return Audit(
        attacks=attack_table(rows, titles),
        records=pd.DataFrame(columns=[*RECORD_COLUMNS]),
        references=0,
        members=int(owned.sum()),
        non_members=int((~owned).sum()),
        empirical_epsilon=nan,
        delta=nan,
        omitted=omitted,
        guesses={key: value for key, value in guesses.items() if not np.isnan(value)},
    )


def with_server(audit: Audit, server: Audit) -> Audit:
    """Combine an audit of a run's released models with the server's audit of the run's updates.

    The server's attack decides a scope if its AUC's lower end is above 0.5 and above the AUC of the attack on models.
    """
    rows = pd.concat([audit.attacks, server.attacks], ignore_index=True)
    # The attack chosen on models stays chosen; so do exact and joint attacks.
    span = rows["attack"].isin([*CHOSEN_OF_VIEW.values(), *JOINT_OF_VIEW.values()])
    rows["chosen"] &= span | ~rows.assign(span=span).duplicated(["scope", "name", "chosen", "span"])
    for _, decides in rows[rows["strongest"].astype(bool)].groupby(["scope", "name"]):
        if len(decides) == 2:
            outsider, updates = decides.index
            stronger = decides["auc.low"][updates] > max(0.5, decides["auc"][outsider])
            rows.loc[outsider if stronger else updates, "strongest"] = False
    return replace(
        audit,
        attacks=rows,
        omitted={**audit.omitted, **server.omitted},
        guesses={**audit.guesses, **server.guesses},
        notes=tuple(dict.fromkeys((*audit.notes, *server.notes))),
    )


def _guesses(
    scores: UpdateScores, preferences: Mapping[int, tuple[float, float]] | None
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the keys and values of `Audit.guesses`, and the reasons for missing guesses."""
    group = client_groups(scores)
    sources = {
        "source-inference": SourceInference().guess(scores),
        "source-inference-in-cluster": SourceInference(among="cluster").guess(scores),
        "group-inference": GroupInference().guess(scores),
    }
    values = {f"{name}.{key}": value for name, guess in sources.items() for key, value in _rate(guess).items()}
    identity, inference = ClusterIdentity(), PreferenceInference()
    choices = {identity.name: partial(identity.guess, scores.assignment, group, scores.clients)}
    omitted: dict[str, str] = {}
    if preferences is None:
        omitted[inference.name] = "needs the clients' thresholds to check the guesses"
    else:
        pairs = torch.tensor([preferences[client] for client in scores.clients.tolist()], dtype=torch.float64)
        tolerated = Preferences(pairs[:, 0], pairs[:, 1])
        choices[inference.name] = partial(inference.guess, scores.assignment, group, tolerated, scores.clients)
    for name, guess in choices.items():
        try:
            # A fixed stream, so that the audits of a run and of its trace agree.
            guessed = guess(Stream(0)(name))
            values |= {f"{name}.{key}": value for key, value in _rate(guessed, last_round=guessed.last_round).items()}
        except InputError as error:
            omitted[name] = str(error)
    return values, omitted


def _rate(guess: Guesses | IdentityGuesses, **more: float) -> dict[str, float]:
    rate = {"accuracy": guess.accuracy, "accuracy.low": guess.low, "accuracy.high": guess.high}
    return {**rate, **more, "chance": guess.chance}
