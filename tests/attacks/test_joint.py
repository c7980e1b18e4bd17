"""The joint attack: a plain regression on per-example gradients as reference; what it finds, and what it must not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.attacks import Candidates, ModelJoint, OwnedRecords, UpdateJoint, UpdateSpan
from shoal.attacks.span import joint
from shoal.core.errors import InputError
from shoal.engine import Engine, LocalSGD, Training
from shoal.metrics import roc_auc
from shoal.replay.span_scores import knowledge_of

CLIENTS, EXAMPLES, INPUTS, CLASSES, ROUNDS = 6, 10, 12, 3, 25
PLAIN = LocalSGD(batch_size="all", learning_rate=1.0)
NOISE = {
    "clients": shoal.DPSGD(max_grad_norm=0.5, noise_multiplier=0.3),
    "sums": shoal.DPSGD(max_grad_norm=0.5, noise_multiplier=0.6, noise="sum", min_clients=4),
    "clipping": shoal.DPSGD(max_grad_norm=0.5, noise_multiplier=0.0),
}
MODELS = {
    "linear": shoal.create_model("logistic", shoal.VectorShape(INPUTS, CLASSES)),
    "mlp": shoal.create_model("mlp", shoal.VectorShape(INPUTS, CLASSES), hidden=16),
    "norm": shoal.Model(lambda: nn.Sequential(nn.LayerNorm(INPUTS), nn.Linear(INPUTS, CLASSES))),
}


def trained(model="linear", defense=None, local=PLAIN, rounds=ROUNDS, **changes):
    """The records of a run, half of them members, its updates and models, and what is known of it."""
    draw = shoal.Stream(1).generator()
    labels = torch.arange(EXAMPLES) % CLASSES
    clients = [(torch.randn(EXAMPLES, INPUTS, generator=draw), labels) for _ in range(CLIENTS)]
    others = torch.randn(CLIENTS * EXAMPLES, INPUTS, generator=draw), labels.repeat(CLIENTS)
    federation = shoal.Federation.from_tensors(clients, test=others)
    with Engine(MODELS[model], threads=1) as engine:
        training = Training(
            federation, changes.pop("algorithm", shoal.FedAvg()), local, engine, shoal.Stream(0),
            defenses=() if defense is None else (defense,), record_every=1, **changes,
        )  # fmt: skip
        state = training.start()
        models, updates = [state.models], []
        for after, report in training.rounds(state, rounds):
            models.append(after.models)
            updates.append(report.updates)
        knowledge = knowledge_of(training, training.start())
    records = OwnedRecords.from_federation(federation)
    owner = torch.arange(CLIENTS).repeat_interleave(EXAMPLES).repeat(2)
    candidates = Candidates(records.x, y=records.y, client=owner)
    merged = [(sent.clients, torch.full((1, len(sent)), 1 / len(sent))) for sent in updates]
    return candidates, torch.stack(models), updates, merged, engine, knowledge


def auc(scores, asked=slice(None)):
    member = np.arange(2 * CLIENTS * EXAMPLES) < CLIENTS * EXAMPLES
    return roc_auc(scores[asked], member[asked])


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("model", MODELS)
def test_it_is_the_regression_on_gradients_clipped_as_clients_clip(model, noise):
    candidates, _, updates, _, engine, knowledge = trained(model, NOISE[noise], rounds=4)
    found, _ = UpdateJoint(prior=0.5).score(updates, candidates, engine, knowledge)
    rule, own, prior = knowledge.local.gradient_privacy, torch.nonzero(candidates.client == 2).flatten(), 4.0
    gram, moved = prior * torch.eye(len(own), dtype=torch.float64), torch.full((len(own),), prior / 2).double()
    slots = engine.model.layout.slots
    dense = {slot.name: torch.full(slot.shape, float(model != "norm" or "1." in slot.name)) for slot in slots}
    dense = engine.model.layout.pack(dense).bool()
    for sent in updates:
        gradients = torch.cat(
            [*engine.example_gradients_into(torch.clone, sent.models[0], candidates.x[own], candidates.y[own])]
        )
        gradients *= (0.5 / gradients.norm(dim=1, keepdim=True)).clamp(max=1)
        design, move = (gradients / EXAMPLES)[:, dense].double(), sent.updates[2]
        variance = (rule.noise_multiplier * 0.5 / EXAMPLES) ** 2 + (0.1 * move.double().norm()) ** 2 / len(move)
        gram += design @ design.T / variance
        moved -= design @ move[dense].double() / variance
    inverse = torch.linalg.inv(gram)
    precise = 1 / inverse.diagonal()
    expected = (inverse @ moved) * precise - prior / 2 - (precise - prior) / 2
    np.testing.assert_allclose(found[own.numpy()], expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("noise", ["clients", "sums"])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_under_noise_it_recognises_members_that_one_by_one_are_hidden(model, noise):
    candidates, models, updates, merged, engine, knowledge = trained(model, NOISE[noise])
    server, threshold = UpdateJoint().score(updates, candidates, engine, knowledge)
    client, _ = ModelJoint().score(models, merged, candidates, engine, knowledge)
    known = replace(candidates, known=candidates.x[60:], known_y=candidates.y[60:], row=candidates.client)
    columns = np.arange(len(candidates.x))
    alone = UpdateSpan().score(updates, known, engine, knowledge).score[candidates.client, columns]
    assert auc(server) > max(0.95, auc(client), auc(alone))
    assert auc(client) > 0.55
    assert (server > threshold).sum() == pytest.approx(len(server) / 2, abs=CLIENTS)


@pytest.mark.parametrize("of_another", [False, True])
def test_on_updates_of_others_it_is_at_chance(of_another):
    candidates, _, updates, _, engine, knowledge = trained("linear", NOISE["clients"])
    moved = [replace(sent, clients=(sent.clients + int(of_another)) % CLIENTS) for sent in updates]
    score, _ = UpdateJoint().score(moved, candidates, engine, knowledge)
    # 60 members and 60 non-members: a standard error of 0.053.
    assert (abs(auc(score) - 0.5) < 0.16) == of_another


def test_members_that_are_missing_on_the_list_weaken_it_and_a_list_in_parts_says_nearly_the_same(monkeypatch):
    candidates, models, _, merged, engine, knowledge = trained("linear", NOISE["clipping"])
    whole, _ = ModelJoint().score(models, merged, candidates, engine, knowledge)
    some = np.r_[0:30, 60:120]
    fewer = Candidates(candidates.x[some], y=candidates.y[some], client=candidates.client[some])
    missing, _ = ModelJoint(prior=0.5).score(models, merged, fewer, engine, knowledge)
    monkeypatch.setattr(joint, "_MAX_RECORDS", 60)
    parts, _ = ModelJoint().score(models, merged, candidates, engine, knowledge)
    assert auc(whole) > auc(parts) > 0.6
    assert auc(whole) > roc_auc(missing, np.arange(90) < 30) > 0.5
    assert np.corrcoef(whole, parts)[0, 1] > 0.5


@pytest.mark.parametrize(
    ("local", "defense"),
    [
        (LocalSGD(epochs=2, batch_size=5), None),
        (LocalSGD(epochs=2, batch_size=4), shoal.DPSGD(max_grad_norm=1e3)),
        (LocalSGD(steps=3, batch_size="all", momentum=0.5, weight_decay=0.2), None),
        (LocalSGD(batch_size="all", decay=0.5), None),
    ],
    ids=["batches", "a-short-batch", "momentum-and-decay", "falling-rate"],
)
def test_it_knows_how_far_local_training_takes_a_gradient(local, defense):
    """With all members and nobody else on the list, the regression finds a membership of 1 of each."""
    local = replace(local, learning_rate=1e-3)
    candidates, _, updates, _, engine, knowledge = trained("linear", defense, local, rounds=3)
    members = Candidates(candidates.x[:60], y=candidates.y[:60], client=candidates.client[:60])
    regression = joint._Regression(members, engine, knowledge, prior=0.5)
    for part in regression.solve(joint.moves_of_updates(updates, torch.arange(CLIENTS), continued=False)):
        assert torch.linalg.pinv(part.gram) @ part.target == pytest.approx(np.ones(EXAMPLES), abs=0.05)


def test_what_it_lacks_is_named():
    candidates, _, updates, _, engine, knowledge = trained(rounds=1)
    bare = Candidates(candidates.x, y=candidates.y)
    for changed, known, missing in (
        (bare, knowledge, "client"),
        (replace(candidates, y=None), knowledge, "label"),
        (candidates, replace(knowledge, local=None), "local training"),
        (candidates, replace(knowledge, examples=None), "number"),
        (candidates, replace(knowledge, control_variates=True), "control variates"),
    ):
        with pytest.raises(InputError, match=missing):
            UpdateJoint().score(updates, changed, engine, known)


def test_rounding_below_a_semidefinite_gram_is_no_failure():
    """A Gram matrix of rank 1 whose rounding gives it an eigenvalue below 0 decides as the exact one."""
    gram = 1e12 * torch.ones(3, 3, dtype=torch.float64)
    target = gram[:, 0] / 3
    rounded = gram - torch.diag(torch.tensor([0.0, 0.0, 300.0], dtype=torch.float64))
    assert torch.linalg.cholesky_ex(rounded + 4 * torch.eye(3, dtype=torch.float64)).info
    odds = joint._Unknown(torch.arange(3), 0.5, rounded, target).log_odds()
    assert torch.isfinite(odds).all()
