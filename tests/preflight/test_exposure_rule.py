"""The rule of what layers give away: its laws, its arithmetic, and exact ranks of small networks."""

import itertools
from dataclasses import replace
from math import inf

import pytest
import torch
from torch.nn import functional

import shoal
from shoal.attacks.span.dense_layers import dense_layers, layer_inputs
from shoal.attacks.span.matched_filter import Clutter
from shoal.core.randomness import Stream
from shoal.preflight.exposure_rule import (
    MIN_EXAMPLES,
    LayerShape,
    Moves,
    exposure_rule,
    initial_gradients,
    most_exposed_layer,
)

ORDER = ("recognised", "between", "hidden")
LAYERS = [LayerShape("layer", inputs, outputs) for inputs, outputs in itertools.product((16, 64, 784), (1, 9, 60, 300))]
SEEN = [Moves(examples, rounds) for examples, rounds in itertools.product((1, 8, 60, 200, 5000), (1, 3, 20))]


def never_hides(one, other):
    """Whether what is seen second gives as much away as what is seen first."""
    return ORDER.index(other.verdict) <= ORDER.index(one.verdict)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.inputs}-{layer.outputs}")
@pytest.mark.parametrize("moves", SEEN, ids=lambda moves: f"{moves.examples}x{moves.rounds}")
def test_more_of_what_tells_records_apart_never_hides_them(layer, moves):
    one = exposure_rule(layer, moves)
    assert never_hides(one, exposure_rule(layer, replace(moves, rounds=moves.rounds + 5)))
    assert never_hides(exposure_rule(layer, replace(moves, examples=2 * moves.examples)), one)
    assert never_hides(exposure_rule(layer, replace(moves, noise=0.1)), one)
    assert never_hides(
        exposure_rule(layer, replace(moves, noise=100.0)), exposure_rule(layer, replace(moves, noise=0.1))
    )
    assert never_hides(exposure_rule(layer, replace(moves, copies=inf, passes=3)), one)
    features = replace(layer, reads_data=False)
    assert never_hides(exposure_rule(features, moves), one)
    merged = replace(moves, merged=4)
    assert never_hides(exposure_rule(features, merged), exposure_rule(features, moves))
    assert exposure_rule(layer, merged) == one
    for wider in (replace(layer, outputs=3 * layer.outputs), replace(layer, inputs=3 * layer.inputs)):
        recognised = exposure_rule(wider, moves).verdict == "recognised"
        assert recognised or one.verdict != "recognised"


@pytest.mark.parametrize(
    ("layer", "moves", "expected"),
    [
        (LayerShape("x", 784, 200), Moves(25), ("recognised", 1, 200, 25)),
        (LayerShape("x", 784, 200), Moves(200, rounds=9), ("recognised", 2, 400, 200)),
        (LayerShape("logistic", 64, 9), Moves(30, rounds=9), ("recognised", 4, 36, 30)),
        # No more than the inputs can be told apart, however wide the layer is and however long it is trained.
        (LayerShape("narrow", 16, 200), Moves(25, rounds=50), ("between", 1, 16, 25)),
        (LayerShape("narrow", 16, 200), Moves(200, rounds=50), ("hidden", 1, 16, 200)),
        # Half of the clients in a round: 100, 150 and 175 examples are behind 60, 120 and 180 rows.
        (LayerShape("x", 784, 60), Moves(200, rounds=9, share=0.5), ("recognised", 3, 180, 175)),
        # Five passes over transformed copies, as many more in every round; flips make two of an example.
        (LayerShape("x", 784, 200), Moves(25, rounds=9, passes=5, copies=inf), ("recognised", 1, 200, 125)),
        (LayerShape("x", 784, 200), Moves(50, rounds=9, passes=5, copies=inf), ("between", 4, 784, 1000)),
        (LayerShape("x", 784, 200), Moves(50, passes=5, copies=2), ("recognised", 1, 200, 100)),
        (LayerShape("x", 784, 200), Moves(50, passes=5, copies=2, searched=False), ("between", 1, 200, 100)),
        (LayerShape("x", 784, 200), Moves(25, passes=5, copies=inf, searched=False), ("between", 1, 200, 125)),
        (LayerShape("x", 784, 200), Moves(25, noise=0.01), ("between", 1, 200, 25)),
        # Noise that no linear test sees through: Phi(sqrt(r / 2) / 4).
        (LayerShape("x", 784, 200), Moves(25, noise=4.0), ("hidden", 1, 200, 25)),
        (LayerShape("x", 784, 200), Moves(25, noise=4.0, rounds=90), ("between", 4, 784, 25)),
        (LayerShape("x", 784, 200), Moves(25, exact=False), ("between", 1, 200, 25)),
        # Features differ between rounds: these cannot be stacked, and a move of all of them has those of all.
        (LayerShape("deep", 500, 100, reads_data=False), Moves(25, rounds=9, passes=5), ("recognised", 1, 100, 25)),
        (LayerShape("deep", 500, 100, reads_data=False), Moves(125, rounds=9), ("between", 1, 100, 125)),
        (LayerShape("deep", 500, 100, reads_data=False), Moves(25, passes=45, merged=9), ("between", 1, 100, 225)),
        (LayerShape("patches", 9, 32, positions=784), Moves(25), ("hidden", 1, 9, 19600)),
    ],
    ids=str,
)  # fmt: skip
def test_known_settings(layer, moves, expected):
    exposure = exposure_rule(layer, moves)
    assert (exposure.verdict, exposure.rounds, exposure.capacity, exposure.distinct) == expected


def test_the_layer_that_gives_most_away_decides():
    narrow, late, early = LayerShape("narrow", 4, 200), LayerShape("late", 99, 9), LayerShape("early", 99, 60)
    exposure = most_exposed_layer([narrow, late, early], Moves(40, rounds=9))
    assert exposure is not None
    assert (exposure.layer, exposure.rounds, exposure.auc) == (early, 1, (0.9, 1.0))
    assert most_exposed_layer([], Moves(40)) is None


@pytest.mark.parametrize(("inputs", "classes"), [(12, 4), (30, 6), (5, 3)])
@pytest.mark.parametrize("examples", [2, 7, 11])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_capacity_is_the_rank_of_a_linear_network_s_moves(inputs, classes, examples, rounds):
    """Softmax errors add up to 0 over classes, so a round has one row less than there are classes."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(examples, inputs, generator=draw, dtype=torch.float64)
    y = torch.randint(classes, (examples,), generator=draw)
    weight, moves = torch.zeros(classes, inputs, dtype=torch.float64, requires_grad=True), []
    for _ in range(rounds):
        (gradient,) = torch.autograd.grad(functional.cross_entropy(x @ weight.T, y), weight)
        moves.append(-2.0 * gradient)
        weight = (weight + moves[-1]).detach().requires_grad_()
    stacked = torch.cat(moves)
    exposure = exposure_rule(LayerShape("output", inputs, classes - 1), Moves(examples, rounds))
    rank = int(torch.linalg.matrix_rank(stacked, rtol=1e-11))
    assert rank <= min(rounds * (classes - 1), inputs, examples)
    if exposure.verdict == "recognised":
        used = stacked[: exposure.rounds * classes]
        assert int(torch.linalg.matrix_rank(used, rtol=1e-11)) == exposure.distinct == examples, (
            "all inputs are spanned"
        )
        others = torch.randn(20, inputs, generator=draw, dtype=torch.float64)
        projector = torch.linalg.pinv(used, rtol=1e-11) @ used
        residual = [(rows - rows @ projector).norm(dim=1) / rows.norm(dim=1) for rows in (x, others)]
        assert residual[0].max() < 1e-6 < residual[1].min()
    else:
        assert exposure.capacity <= exposure.distinct


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
