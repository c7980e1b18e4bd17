"""FedEraser and projected gradient ascent against plain PyTorch."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

import shoal
import shoal.toy
from shoal.core.errors import InputError
from shoal.data.presence import Event, Presence
from shoal.engine import Engine, Leaving, Training
from shoal.forgetting.gradient_ascent import AscentStep
from shoal.simulation.simulation import Simulation

X = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([[0, 1, 0, 1, 0, 1], [1, 0, 0, 1, 1, 0], [1, 1, 0, 0, 1, 0]])
MODEL = shoal.create_model("logistic", shoal.VectorShape(inputs=2, classes=2))
LOCAL = shoal.LocalSGD(epochs=2, batch_size="all", learning_rate=0.3)
FEDERATION = shoal.Federation.from_tensors([*zip(X, Y, strict=True)], test=(X[0], Y[0]))
"""Two clients that stay and a leaver, the last."""


def leaving(engine, method, rounds=5, algorithm=None, federation=FEDERATION):
    events = [Event(round=rounds + 1, leave=(2,))]
    presence = Presence.from_events(events, federation, rounds + 1)
    training = Training(
        federation, algorithm or shoal.FedAvg(), LOCAL, engine, shoal.Stream(4), presence=presence, forgetting=method
    )
    *_, (state, _) = training.rounds(training.start(), rounds)
    return Leaving(training, state, presence.leavers(rounds + 1))


def step(theta, client, rate=0.3, sign=1.0):
    theta = theta.clone().requires_grad_(True)
    tensors = MODEL.layout.views(theta)
    outputs = torch.func.functional_call(MODEL.network(), tensors, (X[client],))
    return torch.autograd.grad(sign * cross_entropy(outputs, Y[client]), theta)[0]


def sgd(theta, client, epochs):
    for _ in range(epochs):
        theta = theta - 0.3 * step(theta, client)
    return theta


@pytest.fixture(params=["loop", "vmap"])
def engine(request):
    with Engine(MODEL, backend=request.param) as engine:
        yield engine


@pytest.mark.parametrize(("interval", "ratio"), [(1, 0.5), (2, 0.5), (2, 1.0), (3, 0.4)])
def test_fed_eraser_is_its_formula(engine, interval, ratio):
    left = leaving(engine, shoal.FedEraser(interval, ratio))
    after, departure = left.training.forgetting.forget(left)
    theta = built = left.training.start().models[0]
    short = {0.4: 1, 0.5: 1, 1.0: 2}[ratio]
    for number in range(5):
        updates = torch.stack([sgd(theta, client, 2) - theta for client in range(3)])
        if number % interval == 0:
            old = updates[:2].mean(dim=0)
            new = torch.stack([sgd(built, client, short) - built for client in range(2)]).mean(dim=0)
            for place in [slice(0, 4), slice(4, 6)] if number else []:
                new[place] *= old[place].norm() / new[place].norm()
            built = built + (new if number else old)
        theta = theta + updates.mean(dim=0)
    assert left.state.models[0].allclose(theta, atol=1e-5), "the past by hand"
    assert after.models[0].allclose(built, atol=1e-5)
    kept = len(range(0, 5, interval))
    assert departure.client_rounds == (kept - 1) * 2 * short / 2
    assert departure.megabytes == pytest.approx(kept * 3 * 4 * 6 / 1e6)


@pytest.mark.parametrize("stop", [1e9, 0.05])
@pytest.mark.parametrize("radius", [1e9, 0.3])
def test_an_ascent_is_its_formula_and_stays_in_the_ball(engine, stop, radius):
    rule = AscentStep(6, 6, 0.9, 0.4, stop)
    start, last = torch.linspace(-1, 1, 6), torch.linspace(-1, 1, 6) + 0.05
    row = torch.cat([start, torch.zeros(6), start, last, torch.tensor([radius, 0.0])])[None]
    theta, velocity, stopped = start, torch.zeros(6), False
    for _ in range(6):
        row = rule.step(row, lambda rows, _: step(rows[0], 2)[None], 0.3)
        if stopped:
            continue
        up = step(theta, 2, sign=-1.0)
        velocity = 0.9 * velocity + up * min(1.0, 0.4 / float(up.norm()))
        theta = theta - 0.3 * velocity
        away = theta - start
        if float(away.square().sum()) > radius:
            theta = start + away * (radius / away.square().sum()).sqrt()
        stopped = bool((theta - last).square().sum() > stop)
    assert row[0, :6].allclose(theta, atol=1e-5)
    assert (float(row[0, -1]) > 0.5) == stopped
    assert float((row[0, :6] - start).square().sum()) <= radius * (1 + 1e-5)
    assert rule.step(row, lambda rows, _: torch.zeros_like(rows), 0.3).equal(row), "without a gradient nothing moves"


def test_gradient_ascent_raises_the_leaver_s_loss_from_a_model_without_its_last_update(engine):
    method = shoal.ProjectedGradientAscent(epochs=3, learning_rate=0.05, momentum=0.0, stop_distance=1e9)
    left = leaving(engine, method)
    after, departure = left.training.forgetting.forget(left)
    *_, (before, _) = left.history()
    last = sgd(before.models[0], 2, 2)
    reference = (left.state.models[0] - last / 3) / (1 - 1 / 3)
    expected = reference
    for _ in range(3):
        expected = expected - 0.05 * step(expected, 2, sign=-1.0)
    assert after.models[0].allclose(expected, atol=1e-4)
    assert (departure.client_rounds, departure.clusters) == (3 / 2, 1)
    assert after.risks.tolist() == [0.5]


def test_a_leaver_that_was_alone_and_what_cannot_be_approximated_are_refused(engine):
    alone = replace(FEDERATION, group=torch.tensor([0, 0, 1]), groups=("a", "b"))
    left = leaving(engine, shoal.ProjectedGradientAscent(), algorithm=shoal.ByGroup(), federation=alone)
    with pytest.raises(InputError, match=r"only client 2\)"):
        left.training.forgetting.forget(left)
    events = [Event(round=2, leave=(2,))]
    for method in (shoal.FedEraser(), shoal.ProjectedGradientAscent()):
        for algorithm, more, reason in (
            (shoal.Ditto(), {}, "got Ditto"),
            (shoal.FedAvg(), {"defenses": [shoal.DPSGD()]}, "DP-SGD"),
        ):
            with pytest.raises(InputError, match=reason):
                Simulation(FEDERATION, MODEL, algorithm, LOCAL, 3, events=events, forgetting=method, **more)
