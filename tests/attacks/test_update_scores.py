"""What the server computes from updates, against loops over records, clients and rounds."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import nn

from shoal.attacks import OwnedRecords, update_scores
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, RoundUpdates
from shoal.engine.backends import gradient_clipping as gradients_module
from shoal.models import MnistCNN, Model, cross_entropy
from shoal.models.networks import ReviewGRU


class Normed(nn.Module):
    """A network with buffers, which are in its vector and have no gradient, and with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.dropout = nn.Linear(36, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)
        self.output = nn.Linear(5, 3)

    def forward(self, images):
        return self.output(self.dropout(self.norm(self.hidden(images.flatten(1)))))


def recorded(model, *, rounds=2, clusters=2):
    """Rounds of random updates: client 7 is missing from the first, and the clients of a round come in any order."""
    draw = torch.Generator().manual_seed(1)

    def of(number):
        clients = torch.tensor([[9, 2, 4], [4, 7, 9, 2]][(number - 1) % 2])
        models = torch.stack([model.init(Stream(number)(k)) for k in range(clusters)])
        updates = 0.1 * torch.randn(len(clients), model.layout.size, generator=draw)
        # Variances of batch norm stay positive.
        updates[:, model.layout.trainable :] = 0.0
        return RoundUpdates(number, clients, clients % clusters, models, updates)

    return [of(number) for number in range(1, rounds + 1)]


def images(count=7, shape=(1, 6, 6)):
    draw = torch.Generator().manual_seed(2)
    client = torch.tensor([2, 2, 4, 7, 11, -1, -1])[torch.arange(count) % 7]
    x, y = torch.rand(count, *shape, generator=draw), torch.randint(0, 3, (count,), generator=draw)
    return OwnedRecords(x, y, client, torch.arange(count) % 2, ("a", "b"))


def scored(model, rounds, records, **settings):
    with Engine(model, **settings) as engine:
        return update_scores(rounds, records, engine)


def loss_and_gradient(model, row, x, y):
    """Of one record, by autograd on the network itself."""
    network = model.network().eval()
    network.load_state_dict(model.state_dict(row), strict=False)
    loss = model.loss(network(x[None]), y[None]).sum()
    trained = dict(network.named_parameters())
    gradients = torch.autograd.grad(loss, list(trained.values()))
    named = dict(zip(trained, gradients, strict=True)) | dict(network.named_buffers())
    return float(loss.detach()), model.layout.pack(named)[: model.layout.trainable].double()


@pytest.mark.parametrize(
    ("model", "records"),
    [
        (Model(Normed), images()),
        (Model(lambda: MnistCNN(1, 8, 3)), images(shape=(1, 8, 8))),
        (
            Model(lambda: ReviewGRU(9, 3)),
            replace(images(), x=torch.randint(1, 9, (7, 4), generator=torch.Generator().manual_seed(3))),
        ),
    ],
    ids=["batch norm and dropout", "convolutions", "recurrent"],
)
def test_every_value_is_that_of_a_loop(model, records):
    rounds = recorded(model)
    scores = scored(model, rounds, records)
    assert scores.clients.tolist() == [2, 4, 7, 9, 11], "client 11 owns a record and was never seen"
    assert scores.client.tolist() == [0, 0, 1, 2, 4, -1, -1]
    seen = np.zeros(scores.loss.shape[:2], dtype=bool)
    for t, updates in enumerate(rounds):
        for client, cluster, update in zip(
            updates.clients.tolist(), updates.assignment.tolist(), updates.updates, strict=True
        ):
            i = scores.clients.tolist().index(client)
            seen[t, i] = True
            assert scores.assignment[t, i] == cluster
            step = -update[: model.layout.trainable].double()
            for m in range(len(records)):
                x, y = records.x[m], records.y[m]
                loss, _ = loss_and_gradient(model, updates.models[cluster] + update, x, y)
                _, gradient = loss_and_gradient(model, updates.models[cluster], x, y)
                assert scores.loss[t, i, m] == pytest.approx(loss, rel=1e-4)
                cosine = step @ gradient / step.norm() / gradient.norm()
                assert scores.cosine[t, i, m] == pytest.approx(float(cosine), abs=1e-5)
                difference = step.norm() ** 2 - (step - gradient).norm() ** 2
                assert scores.difference[t, i, m] == pytest.approx(float(difference), rel=1e-3, abs=1e-4)
    assert (scores.assignment[~seen] == -1).all()
    for values in (scores.loss, scores.cosine, scores.difference):
        assert np.isnan(values[~seen]).all()
        assert not np.isnan(values[seen]).any()


def test_a_client_that_did_not_move_points_nowhere(mlp):
    (sent,) = recorded(mlp, rounds=1)
    scores = scored(mlp, [replace(sent, updates=torch.zeros_like(sent.updates))], images())
    assert (scores.cosine[0, [0, 1, 3]] == 0).all()


def values_of(scores):
    return {column.name: getattr(scores, column.name) for column in fields(scores)}


def test_memory_and_threads_change_nothing_that_is_found(mlp, monkeypatch):
    rounds, records = recorded(mlp), images(40)
    expected = scored(mlp, rounds, records, threads=1)
    monkeypatch.setattr(gradients_module, "_ELEMENTS", 3 * mlp.layout.size)
    sizes = []
    original = gradients_module.example_gradients

    def noted(model, network, row, x, y):
        sizes.append(len(x))
        return original(model, network, row, x, y)

    monkeypatch.setattr("shoal.engine.engine.example_gradients", noted)
    one, three = (scored(mlp, rounds, records, threads=threads) for threads in (1, 3))
    assert max(sizes) == 3, "more gradients at a time than the bound allows"
    for name, values in values_of(one).items():
        np.testing.assert_array_equal(values, values_of(three)[name])
        if isinstance(values, np.ndarray):
            np.testing.assert_allclose(values, values_of(expected)[name], rtol=1e-4, atol=1e-6)


def test_the_records_of_a_federation_are_its_clients_and_nobody_s_test_examples(build):
    federation = build().take(torch.tensor([5, 0, 3, 1, 4, 2]))
    records = OwnedRecords.from_federation(federation)
    owners = [5] * 10 + [0] * 9 + [3] * 12 + [1] * 12 + [4] * 5 + [2] * 7
    assert records.client.tolist() == owners + [-1] * len(federation.test)
    assert torch.equal(records.x[:10], federation.clients.x[federation.clients.indices_of(0)])
    assert torch.equal(records.group[len(owners) :], federation.test.group)
    assert records.group[:19].tolist() == [1] * 10 + [0] * 9


def test_updates_that_cannot_be_attacked_are_one_sentence(mlp):
    (sent,), records = recorded(mlp, rounds=1), images()
    broken = sent.updates.clone()
    broken[1, 3] = torch.nan
    for wrong, sentence in [
        (
            replace(sent, updates=sent.updates[:, 1:]),
            r"round 1: 'updates' .*got \(3, 322\)",
        ),
        (replace(sent, updates=broken), "round 1: 'updates' .* finite"),
        (replace(sent, clients=torch.tensor([2, 4, 2])), "round 1: 'clients' .* client 2"),
        (replace(sent, assignment=torch.tensor([0, 1, 2])), "round 1: 'assignment' "),
    ]:
        with pytest.raises(InputError, match=sentence):
            scored(mlp, [wrong], records)
    with pytest.raises(InputError, match=r"'rounds' must hold the updates of at least one round \(got none\)"):
        scored(mlp, [], records)
    nothing = OwnedRecords(records.x[:0], records.y[:0], records.client[:0], records.group[:0], records.groups)
    with pytest.raises(InputError, match="'records'"):
        scored(mlp, [sent], nothing)


def test_losses_are_the_model_s_own(mlp):
    doubled = Model(mlp.build, lambda outputs, labels: 2 * cross_entropy(outputs, labels))
    rounds, records = recorded(mlp), images()
    np.testing.assert_allclose(scored(doubled, rounds, records).loss, 2 * scored(mlp, rounds, records).loss, rtol=1e-6)
