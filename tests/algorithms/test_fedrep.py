"""FedRep against a plain loop over clients, with PyTorch's own modules, and what leaves a client by it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from plain_training import CLOSE, batches, played, sgd
from shoal.algorithms import FedRep
from shoal.core.randomness import Stream
from shoal.defenses import NormClipping
from shoal.engine import Engine, LocalSGD, Training, client_updates
from shoal.models import Model

LOCAL = LocalSGD(epochs=3, batch_size=4, learning_rate=0.1, momentum=0.5)


def trained(model, federation, algorithm, **options):
    states, reports, deployed = played(model, federation, algorithm, LOCAL, **options)
    return states, reports, deployed.models


def head_of(model: Model) -> Tensor:
    where = torch.zeros(model.layout.size, dtype=torch.bool)
    for piece in model.layout.slices({"output.weight", "output.bias"}):
        where[piece] = True
    return where


@pytest.mark.parametrize(
    ("weighting", "body_epochs", "participation"), [("equal", 1, 0.5), ("examples", 2, 1.0)], ids=str
)
def test_fedrep_trains_each_clients_head_and_then_the_body(model, build, weighting, body_epochs, participation):
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
            for phase, (epochs, part) in enumerate([(3 - body_epochs, head), (body_epochs, ~head)]):
                drawn = batches(federation, i, replace(LOCAL, epochs=epochs), number, phase)
                own = sgd(model, own, drawn, LOCAL, trained=part)
            heads[i] = own[head]
            ends.append(own)
        sizes = federation.clients.sizes[report.cohort].float() if weighting == "examples" else torch.ones(len(ends))
        body = (sizes[:, None] * torch.stack(ends)).sum(dim=0) / sizes.sum()
    torch.testing.assert_close(states[-1].models[0][~head], body[~head], **CLOSE)
    torch.testing.assert_close(states[-1].personal["fedrep"].tensor(), torch.stack(heads), **CLOSE)
    torch.testing.assert_close(deployed.tensor()[:, head], torch.stack(heads), **CLOSE)
    torch.testing.assert_close(deployed.tensor()[:, ~head], body[~head].expand(6, -1), **CLOSE)


def test_heads_of_fedrep_are_not_sent(mlp, build):
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


def test_the_servers_filter_bounds_updates_of_the_body_only(mlp, build):
    head = head_of(mlp)
    plain, _, _ = trained(mlp, build(), FedRep("equal"), rounds=1)
    options = {"update_filter": NormClipping(0.01), "record_every": 1}
    bounded, reports, _ = trained(mlp, build(), FedRep("equal"), rounds=1, **options)
    assert torch.equal(bounded[1].personal["fedrep"].tensor(), plain[1].personal["fedrep"].tensor())
    updates = reports[0].updates.updates[:, ~head]
    expected = (updates * (0.01 / updates.norm(dim=1, keepdim=True)).clamp(max=1)).mean(dim=0)
    moved = bounded[1].models[0, ~head] - bounded[0].models[0, ~head]
    torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-6)


def test_fedrep_with_the_first_layer_as_head_shares_the_rest(mlp, build):
    states, _, deployed = trained(mlp, build(), FedRep(head="hidden"), rounds=1)
    head = ~head_of(mlp)
    assert (deployed.tensor()[:, ~head] == states[-1].models[0, ~head]).all()
    assert len(torch.unique(deployed.tensor()[:, head], dim=0)) == 6
