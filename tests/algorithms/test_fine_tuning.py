"""Fine-tuning: the base's rounds, and then one more training of everybody, against a plain loop over clients."""

import pytest
import torch

from plain_training import CLOSE, batches, played, sgd
from shoal.algorithms import IFCA, Ditto, FedAvg, FineTuning
from shoal.audit.model_scores import Membership
from shoal.core.errors import InputError
from shoal.defenses import NormClipping, ShorterTraining
from shoal.engine import LocalSGD
from shoal.engine.rounds import training as engine_rounds

STEPS, RATE = 3, 0.1
LOCAL = LocalSGD(steps=STEPS, batch_size="all", learning_rate=RATE, decay=0.5)
BATCHES = LocalSGD(epochs=2, batch_size=4, learning_rate=RATE)


def ended(model, federation, algorithm, local=LOCAL, rounds=2, **options):
    """The last state, and what clients use after it."""
    states, _, deployed = played(model, federation, algorithm, local, rounds, **options)
    return states[-1], deployed


def descended(model, federation, start, i, rate, steps=STEPS):
    """Full-batch gradient descent of client i."""
    local = LocalSGD(steps=steps, batch_size="all", learning_rate=rate)
    return sgd(model, start, batches(federation, i, local), local)


@pytest.mark.parametrize("base", [FedAvg(), IFCA(2), Ditto(IFCA(2))], ids=repr)
def test_fine_tuning_is_local_training_of_the_models_that_the_base_deploys(model, build, base):
    federation = build()
    shared, before = ended(model, federation, base)
    state, deployed = ended(model, federation, FineTuning(base))
    assert torch.equal(state.models, shared.models)
    assert state.clients.keys() == shared.clients.keys()
    # At the learning rate of the third round: 0.1 * 0.5^2.
    used = torch.stack([before.models[s] for s in before.model.tolist()])
    expected = [descended(model, federation, each, i, RATE / 4) for i, each in enumerate(used)]
    torch.testing.assert_close(deployed.models.tensor(), torch.stack(expected), **CLOSE)
    assert not torch.allclose(deployed.models.tensor(), used, **CLOSE)
    assert deployed.model.tolist() == list(range(6))
    assert torch.equal(deployed.assignment, before.assignment)


def test_fine_tuning_with_local_settings_replaces_those_of_the_run(mlp, build):
    federation, own = build(), LocalSGD(steps=1, batch_size="all", learning_rate=0.3)
    shared, _ = ended(mlp, federation, FedAvg())
    _, deployed = ended(mlp, federation, FineTuning(local=own))
    expected = [descended(mlp, federation, shared.models[0], i, 0.3, 1) for i in range(6)]
    torch.testing.assert_close(deployed.models.tensor(), torch.stack(expected), **CLOSE)


def test_absent_clients_are_fine_tuned_and_are_members_of_their_models(mlp, build):
    state, deployed = ended(mlp, build(), FineTuning(), rounds=1, participation=0.5)
    assert (state.assignment < 0).sum() == 3
    assert (deployed.models.tensor() != state.models[0]).any(dim=1).all()
    members = Membership.of_deployed(state, deployed, within=5)
    assert torch.equal(members.trainers, torch.eye(6, dtype=torch.bool))
    assert members.latest.tolist() == list(range(6))
    # Without fine-tuning the same client is a member of nothing.
    state, deployed = ended(mlp, build(), Ditto(), rounds=1, participation=0.5)
    assert Membership.of_deployed(state, deployed, within=5).latest.eq(-1).sum() == 3


def test_asked_again_on_other_threads_or_in_another_order_it_gives_the_same_models(mlp, build):
    federation, order = build(), torch.tensor([3, 0, 5, 1, 4, 2])
    (_, first), (_, second) = (ended(mlp, federation, FineTuning(), BATCHES, threads=count) for count in (1, 3))
    assert torch.equal(first.models.tensor(), second.models.tensor())
    _, permuted = ended(mlp, federation.take(order), FineTuning(), BATCHES)
    torch.testing.assert_close(permuted.models.tensor(), first.models.tensor()[order], **CLOSE)


@pytest.mark.parametrize("base", [IFCA(2), FineTuning(Ditto())], ids=repr)
def test_fine_tuning_in_blocks_of_clients_changes_nothing(mlp, build, base, monkeypatch):
    federation = build()
    _, whole = ended(mlp, federation, FineTuning(base), BATCHES)
    monkeypatch.setattr(engine_rounds, "_BLOCK", 4 * mlp.parameters)
    _, parts = ended(mlp, federation, FineTuning(base), BATCHES)
    torch.testing.assert_close(parts.models.tensor(), whole.models.tensor(), **CLOSE)
    clients = federation.clients
    own = clients.indices[clients.owners() == 5]
    # Of both signs, since a step on one of them may end with a hidden layer that gives 0 for it ever after.
    clients.x[own], clients.x[own[::2]] = 1e30, -1e30
    with pytest.raises(InputError, match=r"NaN in the fine-tuning after round 0 at client 5 with"):
        ended(mlp, federation, FineTuning(), BATCHES, rounds=0)


def test_defences_of_local_training_act_on_it_and_the_server_s_filter_does_not(mlp, build):
    federation = build()
    _, plain = ended(mlp, federation, FineTuning(), rounds=0)
    _, shorter = ended(mlp, federation, FineTuning(), rounds=0, defenses=(ShorterTraining(0.34),))
    first, _ = ended(mlp, federation, FedAvg(), rounds=0)
    one = [descended(mlp, federation, first.models[0], i, RATE, 1) for i in range(6)]
    torch.testing.assert_close(shorter.models.tensor(), torch.stack(one), **CLOSE)
    _, limited = ended(mlp, federation, FineTuning(), rounds=0, update_filter=NormClipping(1e-3))
    assert torch.equal(limited.models.tensor(), plain.models.tensor())


def test_a_learning_rate_at_which_it_diverges_is_named_with_the_client(mlp, build):
    local = LocalSGD(steps=9, batch_size="all", learning_rate=1e30)
    with pytest.raises(InputError, match=r"NaN in the fine-tuning after round 1 at client 1 with learning rate 1e\+30"):
        ended(mlp, build(), FineTuning(local=local), LocalSGD(steps=1, batch_size="all"), rounds=1)
