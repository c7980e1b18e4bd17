"""APFL and Per-FedAvg against plain loops over clients, batch by batch, and in the limits where they are others."""

import pytest
import torch

from plain_training import CLOSE, batches, gradient, played
from shoal.algorithms import APFL, PerFedAvg
from shoal.core.randomness import Stream
from shoal.defenses import NormClipping
from shoal.engine import (
    Engine,
    LocalSGD,
    Training,
    client_updates,
)

# Clients of 5 to 12 examples have 2 or 3 batches a pass, so their numbers of steps are odd and even.
BATCHES = LocalSGD(epochs=1, batch_size=4, learning_rate=0.2, weight_decay=0.02)
FULL = LocalSGD(steps=3, batch_size="all", learning_rate=0.2)


def trained(model, federation, algorithm, local=BATCHES, **options):
    return played(model, federation, algorithm, local, **options)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(("local", "participation"), [(BATCHES, 1.0), (FULL, 0.5)], ids=["mini-batches", "full"])
def test_apfl_is_two_models_of_each_client_that_step_together(model, build, adaptive, local, participation):
    federation = build()
    options = {"local": local, "participation": participation}
    states, reports, deployed = trained(model, federation, APFL(0.4, adaptive), **options)
    w = states[0].models[0]
    v, alpha = [w] * 6, [torch.tensor(0.4)] * 6
    rate, decay = local.learning_rate, local.weight_decay
    for number, report in enumerate(reports, start=1):
        ends = []
        for i in report.cohort.tolist():
            own = w
            for batch in batches(federation, i, local, number):
                mixed = alpha[i] * v[i] + (1 - alpha[i]) * own
                of_mixed = gradient(model, mixed, batch, decay)
                step_w, step_v = gradient(model, own, batch, decay), alpha[i] * of_mixed
                if adaptive:
                    alpha[i] = (alpha[i] - rate * torch.dot(v[i] - own, of_mixed)).clamp(0, 1)
                own, v[i] = own - rate * step_w, v[i] - rate * step_v
            ends.append(own)
        w = torch.stack(ends).mean(dim=0)
    torch.testing.assert_close(states[-1].models[0], w, **CLOSE)
    torch.testing.assert_close(states[-1].personal["apfl"].tensor(), torch.stack(v), **CLOSE)
    torch.testing.assert_close(states[-1].clients["apfl.alpha"], torch.stack(alpha), **CLOSE)
    mixtures = torch.stack([a * own + (1 - a) * w for a, own in zip(alpha, v, strict=True)])
    torch.testing.assert_close(deployed.models.tensor(), mixtures, **CLOSE)
    if adaptive:
        assert len(set(states[-1].clients["apfl.alpha"].tolist())) > 1


def test_an_adapted_share_stays_between_0_and_1(mlp, build):
    local = LocalSGD(epochs=2, batch_size=4, learning_rate=2.0)
    (*_, last), _, _ = trained(mlp, build(), APFL(0.5, adaptive=True), local)
    shares = last.clients["apfl.alpha"]
    assert bool(((shares >= 0) & (shares <= 1)).all())
    assert bool(((shares == 0) | (shares == 1)).any()), "the rate is too small to reach an end"


def test_the_server_receives_only_the_shared_model_of_apfl(mlp, build):
    states, reports, _ = trained(mlp, build(), APFL(), record_every=1, rounds=1)
    updates = reports[0].updates
    assert updates is not None
    assert updates.updates.shape == (6, mlp.layout.size)
    torch.testing.assert_close(updates.updates.mean(dim=0), states[1].models[0] - states[0].models[0], **CLOSE)
    with Engine(mlp, threads=1) as engine:
        training = Training(build(), APFL(), BATCHES, engine, Stream(5))
        ((_, _, again),) = client_updates(training, states[0], reports[0], int(build().ids[2]))
    torch.testing.assert_close(again, updates.updates[reports[0].cohort.tolist().index(2)], **CLOSE)
    limited, _, _ = trained(mlp, build(), APFL(), rounds=1, update_filter=NormClipping(1e-3))
    assert torch.equal(limited[1].personal["apfl"].tensor(), states[1].personal["apfl"].tensor())
    assert float((limited[1].models - states[0].models).norm()) <= 1.01e-3


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize(("local", "participation"), [(BATCHES, 1.0), (FULL, 0.5)], ids=["mini-batches", "full"])
def test_per_fedavg_steps_by_the_gradient_where_one_step_leads(mlp, build, backend, local, participation):
    federation, alpha = build(), 0.3
    options = {"local": local, "participation": participation, "backend": backend}
    states, reports, deployed = trained(mlp, federation, PerFedAvg(alpha), **options)
    w, decay = states[0].models[0], local.weight_decay
    for number, report in enumerate(reports, start=1):
        ends = []
        for i in report.cohort.tolist():
            own, left = w, batches(federation, i, local, number)
            while left:
                first, second = left[0], left[min(1, len(left) - 1)]
                adapted = own - alpha * gradient(mlp, own, first, decay)
                own = own - local.learning_rate * gradient(mlp, adapted, second, decay)
                left = left[2:]
            ends.append(own)
        w = torch.stack(ends).mean(dim=0)
    torch.testing.assert_close(states[-1].models[0], w, **CLOSE)
    clients, owned = federation.clients, map(federation.clients.indices_of, range(6))
    expected = [w - alpha * gradient(mlp, w, (clients.x[rows], clients.y[rows])) for rows in owned]
    torch.testing.assert_close(deployed.models.tensor(), torch.stack(expected), **CLOSE)
