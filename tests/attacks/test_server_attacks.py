"""The server's attacks on made-up values, against loops and against what is known of them."""

from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import pytest

from shoal.attacks import (
    FedMIACosine,
    FedMIALoss,
    GradCosine,
    GradDifference,
    GroupInference,
    SourceInference,
    UpdateAttack,
    UpdateScores,
)
from shoal.audit import audit_updates

ATTACKS = [FedMIALoss(), FedMIACosine(), GradCosine(), GradDifference()]


def made_up(rounds=3, clients=6, records=24, *, clusters=1, labels=1, signal=0.0, absent=((0, 2), (2, 5)), seed=0):
    """Records that differ greatly in difficulty, every fourth of nobody; a member's loss is lower by ``signal``."""
    draw = np.random.default_rng(seed)
    client = np.where(np.arange(records) % 4 == 3, -1, draw.integers(0, clients, records))
    difficulty = 5 * draw.standard_normal(records)
    owned = client == np.arange(clients)[:, None]
    shape = (rounds, clients, records)
    values = {
        name: sign * (difficulty - signal * owned + draw.standard_normal(shape))
        for name, sign in (("loss", 1), ("cosine", -0.1), ("difference", -1))
    }
    assignment = np.tile(np.arange(clients) % clusters, (rounds, 1))
    for t, i in absent:
        assignment[t, i] = -1
        for array in values.values():
            array[t, i] = np.nan
    values = {name: array.astype(np.float32) for name, array in values.items()}
    group = np.arange(records) % 2 if clusters > 1 else np.zeros(records, dtype=np.int64)
    return UpdateScores(
        np.arange(1, rounds + 1), np.arange(clients) * 10, assignment, **values,
        label=np.random.default_rng(seed + 1).integers(0, labels, records), client=client, group=group,
        groups=("a", "b"),
    )  # fmt: skip


@dataclass(frozen=True)
class OfKind:
    """Scores that know a client and a record's group and label, and nothing else of a record: a table (N, G, C)."""

    table: np.ndarray
    name: str = "of-kind"
    title: ClassVar[str] = "of kind"
    view: ClassVar[str] = "server"
    threshold: ClassVar[float] = 0.0

    def score(self, scores):
        return self.table[:, scores.group, scores.label]


def fedmia(values, assignment):
    """Clients, records and rounds one by one."""
    rounds, clients, records = values.shape
    scores = np.full((clients, records), np.nan)
    for i in range(clients):
        for m in range(records):
            percentiles = []
            for t in range(rounds):
                if assignment[t, i] < 0:
                    continue
                null = [values[t, k, m] for k in range(clients) if k != i and assignment[t, k] == assignment[t, i]]
                if len(null) < 2:
                    continue
                mean = sum(null) / len(null)
                variance = sum((v - mean) ** 2 for v in null) / len(null) + 1e-8
                percentiles.append(NormalDist().cdf((values[t, i, m] - mean) / np.sqrt(variance)))
            if percentiles:
                scores[i, m] = sum(percentiles) / len(percentiles)
    return scores


@pytest.mark.parametrize("clusters", [1, 2])
def test_fedmia_is_that_of_a_loop(clusters):
    scores = made_up(clusters=clusters, signal=1.0)
    for attack, values in ((FedMIALoss(), -scores.loss), (FedMIACosine(), scores.cosine)):
        expected = fedmia(values.astype(np.float64), scores.assignment)
        np.testing.assert_allclose(attack.score(scores), expected, rtol=0, atol=1e-9)
    assert np.isfinite(expected).all(), "every client had two others at some time"


def test_gradient_alignment_is_the_mean_over_the_rounds_of_a_client():
    scores = made_up()
    for attack, values in ((GradCosine(), scores.cosine), (GradDifference(), scores.difference)):
        means = attack.score(scores)
        for i in range(6):
            seen = [values[t, i].astype(np.float64) for t in range(3) if scores.assignment[t, i] >= 0]
            np.testing.assert_allclose(means[i], sum(seen) / len(seen), rtol=0, atol=1e-9)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_update_attacks_give_no_score_to_an_absent_client(attack):
    assert isinstance(attack, UpdateAttack)
    scores = made_up(absent=[(t, 1) for t in range(3)])
    values = attack.score(scores)
    assert np.isnan(values[1]).all()
    assert np.isfinite(values[[0, 2, 3, 4, 5]]).all()
    audit = audit_updates(attack, scores)
    assert audit.unused.members == (np.isin(scores.client, [0, 2, 3, 4, 5])).sum()


def test_fedmia_needs_two_other_clients():
    scores = made_up(clients=2, absent=())
    assert np.isnan(FedMIALoss().score(scores)).all()
    assert np.isnan(FedMIACosine().score(scores)).all()


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_members_are_found_and_the_two_kinds_of_non_members_told_apart(attack):
    scores = made_up(clients=8, records=400, signal=1.0)
    audit = audit_updates(attack, scores)
    members, nobody = (scores.client >= 0).sum(), (scores.client == -1).sum()
    assert (audit.unused.members, audit.unused.non_members) == (members, 8 * nobody)
    assert (audit.other_clients.members, audit.other_clients.non_members) == (members, 7 * members)
    assert list(audit.by_client) == scores.clients.tolist()
    assert sum(client.members for client in audit.by_client.values()) == members
    if isinstance(attack, FedMIALoss | FedMIACosine):
        assert audit.unused.auc > 0.75
        # The owner's low loss is in the null of the others' records, which so look even less like members.
        assert audit.other_clients.auc > audit.unused.auc + 0.005


def test_a_group_is_compared_with_its_own_non_members():
    scores = made_up(clients=4, records=200, clusters=2, absent=())
    # Clients 0 and 2 are of group a, 1 and 3 of group b, whose records have all values higher.
    client = np.where(np.arange(200) % 8 >= 6, -1, np.arange(200) % 4)
    scores = replace(scores, client=client, group=np.arange(200) % 2)
    scores.cosine[:, :, scores.group == 1] += 20.0
    both, a = audit_updates(GradCosine(), scores), audit_updates(GradCosine(), scores, "a")
    assert list(a.by_client) == [0, 20]
    assert list(both.by_client) == [0, 10, 20, 30]
    assert both.by_client[0].auc == a.by_client[0].auc
    assert a.unused.non_members == 2 * ((client == -1) & (scores.group == 0)).sum()
    assert both.unused.non_members == 2 * (client == -1).sum()


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_client_group_and_label_alone_are_at_chance(seed):
    scores = made_up(clients=8, records=400, clusters=2, labels=10, seed=seed)
    audit = audit_updates(OfKind(np.random.default_rng(seed).standard_normal((8, 2, 10))), scores)
    for metrics in (audit.unused, audit.other_clients, *audit.by_client.values()):
        assert metrics.auc == pytest.approx(0.5, abs=1e-9)
        assert metrics.accuracy == pytest.approx(0.5, abs=1e-9)


def test_a_client_s_non_members_have_its_members_groups_and_labels_by_weight():
    """Against sums over all pairs of records of one client."""
    scores = made_up(clients=4, records=120, clusters=2, labels=5, signal=1.0, absent=())
    row = GradCosine().score(scores)[1]
    kinds = list(zip(scores.group.tolist(), scores.label.tolist(), strict=True))
    members = [m for m in range(120) if scores.client[m] == 1]
    nobody = [m for m in range(120) if scores.client[m] == -1]
    compared = [m for m in members if any(kinds[m] == kinds[k] for k in nobody)]
    share = {k: sum(kinds[m] == kinds[k] for m in compared) / sum(kinds[m] == kinds[k] for m in nobody) for k in nobody}
    above = sum(share[k] * (row[m] > row[k]) for m in compared for k in nobody)
    metrics = audit_updates(GradCosine(), scores).by_client[10]
    assert 0 < len(compared) < len(members), "some members have no partner"
    assert sum(share.values()) == pytest.approx(len(compared))
    assert metrics.auc == pytest.approx(above / len(compared) ** 2, abs=1e-9)
    assert (metrics.members, metrics.non_members) == (len(compared), sum(weight > 0 for weight in share.values()))


def test_members_whose_labels_nobody_s_record_has_are_left_out():
    scores = made_up(clients=4, records=80, labels=4, absent=())
    audit = audit_updates(GradCosine(), replace(scores, label=np.where(scores.client == -1, 1, scores.label)))
    assert audit.unused.members == ((scores.client >= 0) & (scores.label == 1)).sum()
    assert audit.other_clients.members == (scores.client >= 0).sum()
    none = audit_updates(GradCosine(), replace(scores, label=np.where(scores.client == -1, 4, scores.label)))
    assert (none.unused.members, none.unused.non_members) == (0, 0)
    assert np.isnan(none.unused.auc)
    assert none.other_clients.auc == audit.other_clients.auc


@pytest.mark.parametrize("among", ["federation", "cluster"])
def test_source_inference_is_that_of_a_loop(among):
    scores = made_up(clusters=2, signal=1.0, records=60)

    def expected(losses, assignment):
        right, chances = 0, []
        for m, owner in enumerate(scores.client):
            if owner < 0 or assignment[owner] < 0:
                continue
            asked = [k for k in range(6) if assignment[k] >= 0]
            if among == "cluster":
                asked = [k for k in asked if assignment[k] == assignment[owner]]
            right += min(asked, key=lambda k, m=m: losses[k, m]) == owner
            chances.append(1 / len(asked))
        return right, len(chances), sum(chances) / len(chances)

    for t in range(3):
        one = {name: getattr(scores, name)[t : t + 1] for name in ("rounds", "loss", "assignment")}
        guesses = SourceInference(among=among).guess(replace(scores, **one))
        right, of, chance = expected(scores.loss[t], scores.assignment[t])
        assert (guesses.right, guesses.count) == (right, of)
        assert guesses.chance == pytest.approx(chance, abs=1e-9)
        assert 0 <= guesses.low <= guesses.accuracy <= guesses.high <= 1
    # Client 2 was away in the first round, client 5 in the last.
    means = np.stack([np.nanmean(scores.loss[:, i].astype(np.float64), axis=0) for i in range(6)])
    right, of, chance = expected(means, np.arange(6) % 2)
    guesses = SourceInference(among=among).guess(scores)
    assert (guesses.right, guesses.count) == (right, of)
    assert guesses.chance == pytest.approx(chance, abs=1e-9)


def test_source_inference_leaves_out_a_client_alone_in_its_cluster():
    scores = made_up(clients=2, clusters=2, absent=())
    alone = SourceInference(among="cluster").guess(scores)
    assert (alone.right, alone.count, alone.low, alone.high) == (0, 0, 0.0, 1.0)
    assert np.isnan(alone.accuracy)


def test_group_inference_guesses_the_majority_of_the_last_cluster():
    client = np.repeat(np.arange(6), 4)
    group = np.repeat([0, 0, 0, 1, 1, 0], 4)
    scores = replace(made_up(absent=()), client=client, group=group)
    # The last recorded round decides: 0, 1, 2 | 3, 4, 5, and only the last client is in another group's cluster.
    scores.assignment[:] = [[0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, -1, 1, 1]]
    guesses = GroupInference().guess(scores)
    assert (guesses.right, guesses.count, guesses.chance) == (5, 6, 4 / 6)
    scores.assignment[:] = 0
    assert GroupInference().guess(scores).accuracy == 4 / 6, "one model tells nothing beyond the largest group"
