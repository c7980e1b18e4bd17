"""The audit of reconstructed updates: exact where updates stay, no better than the baseline where it cannot be."""

import math
from dataclasses import replace

import pytest
import torch

from shoal.attacks import reconstruct_from_rounds
from shoal.attacks.updates.centroid_reconstruction import moves_between
from shoal.audit import audit_reconstruction
from shoal.core.errors import InputError
from shoal.engine import RoundUpdates, averaging_weights


def rounds_of(sent, assignment, sizes=None, models=2):
    """Rounds in which client i sends ``sent[t, i]`` and models move by their clients' averages."""
    released, recorded = torch.zeros(models, sent.shape[2]), []
    weights = torch.ones(sent.shape[1]) if sizes is None else sizes
    for t, (updates, chosen) in enumerate(zip(sent, assignment, strict=True), start=1):
        there = torch.nonzero(chosen >= 0).flatten()
        recorded.append(RoundUpdates(t, there, chosen[there], released, updates[there]))
        move = averaging_weights(chosen[there], weights[there], models) @ updates[there].double()
        released = released + move.float()
    # The models after the last round.
    return [*recorded, RoundUpdates(len(sent) + 1, there, chosen[there], released, updates[there])]


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def choices(rounds, clients, seed=1):
    return torch.randint(-1, 2, (rounds, clients), generator=torch.Generator().manual_seed(seed))


EQUAL = dict.fromkeys(range(6), 5.0)


def test_updates_that_stay_are_recovered_and_the_mean_move_is_not_enough():
    rounds = rounds_of(drawn(6, 200).expand(12, -1, -1), choices(12, 6))
    audit = audit_reconstruction(rounds, EQUAL)
    assert audit.clients.tolist() == list(range(6))
    assert (audit.rounds, audit.explained) == (12, pytest.approx(1.0))
    torch.testing.assert_close(audit.cosine, torch.ones(6).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(audit.resolution, torch.ones(6).double())
    assert float(audit.baseline.max()) < 0.95
    torch.testing.assert_close(audit.cosine, reconstruct_from_rounds(rounds).cosines(rounds), rtol=0, atol=1e-5)


def test_clients_who_were_never_apart_have_no_gain_over_the_mean_move():
    rounds = rounds_of(drawn(6, 200).expand(5, -1, -1), torch.tensor([0, 0, 0, 1, 1, 1]).expand(5, -1))
    audit = audit_reconstruction(rounds, EQUAL)
    torch.testing.assert_close(audit.cosine, audit.baseline, rtol=0, atol=1e-5)
    torch.testing.assert_close(audit.resolution, torch.full((6,), 1 / 3).double())
    # By hand: the cosine of a client's update with the mean of the three.
    mean = drawn(6, 200)[:3].mean(dim=0)
    assert float(audit.baseline[1]) == pytest.approx(
        float(torch.cosine_similarity(mean, drawn(6, 200)[1], dim=0)), abs=1e-5
    )


def test_the_updates_of_past_rounds_do_not_stay_in_memory(monkeypatch):
    kept = []

    def seen(rounds):
        kept.extend(recorded.updates.untyped_storage().nbytes() for recorded in rounds)
        return moves_between(rounds)

    monkeypatch.setattr("shoal.audit.update_audit.moves_between", seen)
    audit_reconstruction(rounds_of(drawn(5, 6, 20), choices(5, 6)), EQUAL)
    assert kept == [0] * 6


def test_updates_drawn_anew_in_every_round_are_not_explained():
    audit = audit_reconstruction(rounds_of(drawn(40, 6, 200), choices(40, 6)), EQUAL)
    assert audit.explained < 0.3
    assert float(audit.cosine.mean()) < 0.9


def test_the_recorded_updates_decide_nothing_of_what_is_reconstructed():
    rounds = rounds_of(drawn(6, 50).expand(12, -1, -1), choices(12, 6))
    lost = [replace(recorded, updates=torch.full_like(recorded.updates, math.nan)) for recorded in rounds]
    seen, blank = audit_reconstruction(rounds, EQUAL), audit_reconstruction(lost, EQUAL)
    assert (blank.explained, blank.rounds) == (seen.explained, seen.rounds)
    assert torch.equal(blank.resolution, seen.resolution)
    assert bool(blank.cosine.isnan().all()), "only the judgement"


@pytest.mark.parametrize("by_examples", [False, True])
def test_how_the_server_weighs_clients_is_found_from_the_moves(by_examples):
    sizes = torch.tensor([3.0, 9.0, 4.0, 1.0, 7.0, 5.0])
    rounds = rounds_of(drawn(6, 80).expand(14, -1, -1), choices(14, 6), sizes if by_examples else None)
    audit = audit_reconstruction(rounds, dict(enumerate(sizes.tolist())))
    assert audit.explained == pytest.approx(1.0)
    assert float(audit.cosine.min()) > 0.999


def test_rounds_without_a_next_one_are_not_counted_and_none_is_one_sentence():
    rounds = rounds_of(drawn(6, 20).expand(6, -1, -1), choices(6, 6))
    assert audit_reconstruction([*rounds[:3], rounds[5]], EQUAL).rounds == 2
    for few in ([], rounds[:1], rounds[::2]):
        with pytest.raises(InputError, match=r"got no two consecutive rounds$"):
            audit_reconstruction(few, EQUAL)
    more = replace(rounds[1], models=rounds[1].models.repeat(2, 1))
    with pytest.raises(InputError, match="the same models in all rounds"):
        audit_reconstruction([rounds[0], more], EQUAL)
