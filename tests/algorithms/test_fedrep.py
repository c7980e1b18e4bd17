"""FedRep against a plain loop over clients, with PyTorch's own modules, and what leaves a client by it."""

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms import FedAvg, FedRep
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import NormClipping
from shoal.engine import Engine, LocalSGD, RoundReport, State, Training, client_updates
from shoal.models import Model
from shoal.runs.run import run

LOCAL = LocalSGD(epochs=3, batch_size=4, learning_rate=0.1, momentum=0.5)
CLOSE = {"rtol": 1e-4, "atol": 1e-6}
ROUNDS = 3


def trained(
    model: Model, federation: Federation, algorithm, local=LOCAL, rounds=ROUNDS, **others
) -> tuple[list[State], list[RoundReport], Tensor]:
    """The states after each round, the initial one first; the reports; and what clients use in the end (N, P)."""
    with Engine(model, threads=1) as engine:
        training = Training(engine.prepare(federation), algorithm, local, engine, Stream(5), **others)
        first = training.start()
        played = list(training.rounds(first, rounds))
        states = [first, *(state for state, _ in played)]
        return states, [report for _, report in played], training.deployed(states[-1])[0].models


def head_of(model: Model) -> Tensor:
    where = torch.zeros(model.layout.size, dtype=torch.bool)
    for piece in model.layout.slices({"output.weight", "output.bias"}):
        where[piece] = True
    return where


def phase(model: Model, federation: Federation, start: Tensor, i: int, epochs: int, number: int, index: int) -> Tensor:
    """Client i's epochs on its head (phase 0) or on the body (phase 1) in a round, by `torch.optim.SGD`."""
    network = model.network()
    network.load_state_dict(model.state_dict(start))
    trains = [each for name, each in network.named_parameters() if name.startswith("output.") == (index == 0)]
    optimizer = torch.optim.SGD(trains, LOCAL.learning_rate, LOCAL.momentum)
    clients, local = federation.clients, LocalSGD(epochs=epochs, batch_size=4)
    mine, stream = clients.owned(i), Stream(5)("round", number, "batches")("phase", index)
    for order in local.randomness(clients, federation.ids, stream).orders[i]:
        for batch in order[: len(mine)].split(local.batch(len(mine))):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(clients.x[mine[batch]]), clients.y[mine[batch]]).backward()
            optimizer.step()
    return model.layout.pack(dict(network.named_parameters())).detach()


@pytest.mark.parametrize(
    ("weighting", "body_epochs", "participation"), [("equal", 1, 0.5), ("examples", 2, 1.0)], ids=str
)
def test_it_is_each_client_s_head_then_the_body(model, build, weighting, body_epochs, participation):
    federation, head = build(), head_of(model)
    algorithm = FedRep(weighting, body_epochs=body_epochs)
    states, reports, deployed = trained(model, federation, algorithm, participation=participation)
    body = states[0].models[0]
    heads = [body[head]] * len(federation)
    for number, report in enumerate(reports, start=1):
        ends = []
        for i in report.cohort.tolist():
            own = body.clone()
            own[head] = heads[i]
            own = phase(model, federation, own, i, 3 - body_epochs, number, 0)
            heads[i] = own[head]
            ends.append(phase(model, federation, own, i, body_epochs, number, 1))
        sizes = federation.clients.sizes[report.cohort].float() if weighting == "examples" else torch.ones(len(ends))
        body = (sizes[:, None] * torch.stack(ends)).sum(dim=0) / sizes.sum()
    torch.testing.assert_close(states[-1].models[0][~head], body[~head], **CLOSE)
    torch.testing.assert_close(states[-1].personal["fedrep"].tensor(), torch.stack(heads), **CLOSE)
    torch.testing.assert_close(deployed.tensor()[:, head], torch.stack(heads), **CLOSE)
    torch.testing.assert_close(deployed.tensor()[:, ~head], body[~head].expand(6, -1), **CLOSE)


def test_no_head_leaves_its_client(mlp, build):
    head = head_of(mlp)
    states, reports, _ = trained(mlp, build(), FedRep(), record_every=1)
    for before, report in zip(states, reports, strict=False):
        assert report.updates is not None
        assert not report.updates.updates[:, head].any()
        assert report.updates.updates[:, ~head].any(dim=1).all()
        assert torch.equal(before.models[0, head], states[0].models[0, head])
    heads = states[-1].personal["fedrep"].tensor()
    assert len(torch.unique(heads, dim=0)) == 6
    with Engine(mlp, threads=1) as engine:
        training = Training(build(), FedRep(), LOCAL, engine, Stream(5), record_every=1)
        ((_, _, again),) = client_updates(training, states[1], reports[1], int(build().ids[reports[1].cohort[2]]))
    torch.testing.assert_close(again, reports[1].updates.updates[2], **CLOSE)


def test_the_server_s_filter_bounds_the_body_s_update_and_leaves_the_heads(mlp, build):
    head = head_of(mlp)
    plain, _, _ = trained(mlp, build(), FedRep("equal"), rounds=1)
    options = {"update_filter": NormClipping(0.01), "record_every": 1}
    bounded, reports, _ = trained(mlp, build(), FedRep("equal"), rounds=1, **options)
    assert torch.equal(bounded[1].personal["fedrep"].tensor(), plain[1].personal["fedrep"].tensor())
    updates = reports[0].updates.updates[:, ~head]
    expected = (updates * (0.01 / updates.norm(dim=1, keepdim=True)).clamp(max=1)).mean(dim=0)
    moved = bounded[1].models[0, ~head] - bounded[0].models[0, ~head]
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-6)


def test_with_its_first_layer_as_head_the_rest_is_shared(mlp, build):
    states, _, deployed = trained(mlp, build(), FedRep(head="hidden"), rounds=1)
    head = ~head_of(mlp)
    assert (deployed.tensor()[:, ~head] == states[-1].models[0, ~head]).all()
    assert len(torch.unique(deployed.tensor()[:, head], dim=0)) == 6


def test_it_is_not_fedavg(mlp, build):
    (_, *_, rep), (_, *_, average) = (trained(mlp, build(), each)[0] for each in (FedRep(), FedAvg()))
    assert not torch.allclose(rep.models, average.models, **CLOSE)


@pytest.mark.parametrize(
    ("local", "sentence"),
    [
        (LocalSGD(epochs=1), "'epochs' must be at least 2; got 1"),
        (LocalSGD(steps=4), "'epochs' must be at least 2; got steps = 4"),
        (LocalSGD(epochs=2, share=0.5), "FedRep needs all local steps"),
    ],
    ids=["one epoch", "steps", "shorter"],
)
def test_local_training_without_epochs_for_the_head_is_refused(local, sentence):
    with pytest.raises(InputError, match=sentence):
        FedRep().check(local, 0)


def test_a_configuration_names_it_and_what_it_cannot_do(toy_config, tmp_path):
    with pytest.raises(InputError, match=r"FedRep trains the head in all local 'epochs' but the last 1"):
        run(toy_config(algorithm={"name": "fedrep", "rounds": 1}), tmp_path / "run")
    with pytest.raises(InputError, match=r"'algorithm.body_epochs' must be at least 1; got 0"):
        toy_config(algorithm={"name": "fedrep", "rounds": 1, "body_epochs": 0})
    assert not (tmp_path / "run").exists()
