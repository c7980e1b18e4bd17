"""What the audit of a server says beside membership, on made-up values."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.attacks import UpdateScores
from shoal.audit.update_audit import audit_server
from shoal.core.errors import InputError


def scores(assignment, group):
    """Values (T, N, M) without meaning of N clients with a record each, and of a record of nobody, all of one label."""
    rounds, clients = assignment.shape
    values = np.random.default_rng(0).standard_normal((3, rounds, clients, clients + 1)).astype(np.float32)
    return UpdateScores(
        np.arange(1, rounds + 1), np.arange(clients), assignment, *values,
        label=np.zeros(clients + 1, dtype=np.int64), client=np.append(np.arange(clients), -1),
        group=np.append(group, 0), groups=("north", "south"),
    )  # fmt: skip


def test_groups_are_guessed_from_the_choices_of_all_rounds():
    group = np.repeat([0, 1], 6)
    # Clusters swap their numbers in the second round.
    audit = audit_server(scores(np.stack([group, 1 - group]), group))
    flat = {key: value for key, value in audit.flat().items() if key.startswith("cluster-identity.")}
    assert {key.removeprefix("cluster-identity.") for key in flat} == {
        "accuracy", "accuracy.low", "accuracy.high", "last_round", "chance",
    }  # fmt: skip
    assert (flat["cluster-identity.accuracy"], flat["cluster-identity.chance"]) == (1.0, 0.5)
    assert flat["cluster-identity.accuracy.low"] < 1.0
    assert "cluster-identity" not in audit.omitted
    assert audit.omitted["preference-inference"] == ("needs the clients' thresholds to check the guesses")


def test_preferences_are_asked_where_they_are_known():
    group = np.repeat([0, 1], 6)
    strict = np.arange(12) % 2
    preferences = {i: (0.8 - 0.2 * s - 0.001 * i, 0.5) for i, s in enumerate(strict.tolist())}
    chosen = np.stack([strict, 1 - strict])
    audit = audit_server(scores(chosen, group), preferences)
    flat = audit.flat()
    assert (flat["preference-inference.accuracy"], flat["preference-inference.chance"]) == (1.0, 0.5)
    assert audit.omitted == {}


def test_where_choices_can_tell_nothing_the_reason_is_said():
    audit = audit_server(scores(np.arange(8).reshape(2, 4) % 2, np.zeros(4, dtype=np.int64)))
    assert not any(key.startswith("cluster-identity") for key in audit.flat())
    assert audit.flat()["group-inference.accuracy"] > 0
    assert audit.omitted["cluster-identity"].endswith("two groups (got 1)")


def test_members_need_records_of_nobody_with_their_group_and_label():
    scored = scores(np.zeros((1, 4), dtype=np.int64), np.array([0, 0, 0, 1]))
    partly = replace(scored, label=np.array([0, 1, 1, 0, 0]))
    attacks = audit_server(partly).attacks.set_index(["attack", "scope", "name"])
    assert attacks.loc[("grad-cosine", "all", "all"), "members"] == 1, "that of client 0"
    assert attacks.loc[("grad-cosine", "group", "south"), "members"] == 0
    # A record of north's second label is none of south's first.
    partly = replace(scored, label=np.array([0, 1, 1, 0, 1]))
    attacks = audit_server(partly).attacks.set_index(["attack", "scope", "name"])
    assert attacks.loc[("grad-cosine", "all", "all"), "members"] == 2, "those of clients 1 and 2"
    assert attacks.loc[("grad-cosine", "group", "south"), "members"] == 0
    for changes, sentence in [
        ({"label": np.array([0, 0, 0, 0, 1])}, "has the group and label of a client's"),
        ({"client": np.full(5, -1)}, "no record belongs to a client"),
        ({"client": np.array([0, 1, 2, 3, 3])}, "every record belongs to a client"),
    ]:
        with pytest.raises(InputError, match=sentence):
            audit_server(replace(scored, **changes))
