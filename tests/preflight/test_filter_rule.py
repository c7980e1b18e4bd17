"""The AUC that is predicted of the matched filter, against the filter itself on moves of one gradient."""

from math import inf

import pytest
import torch
from torch.nn import functional

import shoal
from shoal.attacks.span.dense_layers import dense_layers, layer_inputs
from shoal.attacks.span.matched_filter import Clutter
from shoal.core.randomness import Stream
from shoal.preflight.exposure_rule import MIN_EXAMPLES, initial_gradients

MODEL = shoal.create_model("mlp", shoal.VectorShape(inputs=30, classes=4), hidden=20)
ROW = MODEL.init(Stream(0))


def examples(count, seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 30, generator=draw) * torch.linspace(0.2, 2, 30), torch.randint(
        4, (count,), generator=draw
    )


def measured(members, noise, clipped, draws=5):
    """The AUC of the filter on sums of members' gradients of the hidden layer, with noise in each number."""
    (layer,) = dense_layers(MODEL, "hidden")
    total = 0.0
    for draw in range(draws):
        x, y = examples(1200, draw + 1)
        inputs, errors = layer_inputs(MODEL, ROW, layer, x, torch.float32, y)
        # The gradients' lengths, of both layers.
        _, features = layer_inputs(MODEL, ROW, dense_layers(MODEL, "output")[0], x, torch.float32, y)
        read = layer_inputs(MODEL, ROW, dense_layers(MODEL, "output")[0], x, torch.float32)[0]
        lengths = (
            (errors.norm(dim=1) * inputs.norm(dim=1)) ** 2 + (features.norm(dim=1) * read.norm(dim=1)) ** 2
        ).sqrt()
        factor = (clipped / lengths).clamp(max=1)
        move = -((errors * factor[:, None])[:members].T @ inputs[:members])
        move += noise * torch.randn(move.shape, generator=torch.Generator().manual_seed(draw))
        score = Clutter.of_records(inputs, errors).scores(move, noise, inputs, errors)
        total += float((score[:members, None] > score[None, members:]).double().mean())
    return total / draws


@pytest.mark.parametrize(
    ("members", "noise", "clipped"),
    [(20, 0.1, 1.0), (20, 0.5, 1.0), (50, 1.0, 1.0), (60, 0.2, 1.0), (150, 0.0, inf), (300, 0.0, inf)],
)
def test_the_filter_finds_what_is_predicted(members, noise, clipped):
    terms = initial_gradients(MODEL, ROW, *examples(1200, 0), ["hidden", "output"], clipped).terms["hidden"]
    assert terms.auc(members, noise) == pytest.approx(measured(members, noise, clipped), abs=0.04)


def test_more_of_what_hides_a_record_hides_it():
    gradients = initial_gradients(MODEL, ROW, *examples(400, 0), ["hidden"], 1.0)
    terms = gradients.terms["hidden"]
    aucs = [terms.auc(20, noise) for noise in (0.05, 0.2, 1.0, 5.0, 50.0)]
    assert aucs == sorted(aucs, reverse=True)
    assert aucs[-1] < 0.52
    sums = [terms.auc(examples, 0.0) for examples in (10, 100, 1000, 10_000)]
    assert sums == sorted(sums, reverse=True)
    # As advice asks of sums over all that a grid goes to.
    assert terms.auc(80 * 80_000_000, 0.0) < 0.51
    assert terms.auc(20, 1.0, rounds=9) > terms.auc(20, 1.0) > terms.auc(20, 1.0, share=0.5)
    # A record that is in no move is at chance.
    assert terms.auc(20, 0.05, share=0.5) <= 0.75
    assert terms.narrowed(3).auc(20, 0.2) < terms.auc(20, 0.2)


def test_lengths_of_updates_are_those_of_summed_gradients():
    x, y = examples(200, 0)
    gradients = initial_gradients(MODEL, ROW, x, y, ["hidden"], whole=True)
    network = MODEL.network()
    network.load_state_dict(MODEL.layout.views(ROW), strict=False)
    lengths = []
    for begin in range(0, 200, 10):
        loss = functional.cross_entropy(network(x[begin : begin + 10]), y[begin : begin + 10], reduction="sum")
        parts = torch.autograd.grad(loss, [*network.parameters()])
        lengths.append(torch.cat([part.flatten() for part in parts]).norm() ** 2)
    assert gradients.update_length(10) ** 2 == pytest.approx(float(torch.stack(lengths).mean()), rel=0.15)


def test_of_few_examples_nothing_is_predicted():
    few = initial_gradients(MODEL, ROW, *examples(MIN_EXAMPLES - 1, 0), ["hidden"])
    assert not few.terms
    assert not initial_gradients(MODEL, ROW, *examples(MIN_EXAMPLES, 0), []).terms
