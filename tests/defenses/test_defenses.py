"""Laws that bind every defence, and those of dropout, L2 and norm clipping."""

import math
import pickle
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from full_simulation import simulate_with
from shoal import FedAvg, LocalSGD, LossThreshold, RedTeam, ShadowModels, Training
from shoal.algorithms import IFCA, IFCAMIR
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import (
    CCL,
    DPSGD,
    L2,
    Augmentation,
    Dropout,
    Flooding,
    LaplaceNoise,
    Mixup,
    NormClipping,
    RelaxLoss,
    ShorterTraining,
    TrainingSetup,
    accounting,
    apply_defenses,
)
from shoal.engine import Engine, resolve_backend
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.models import MLP, Logistic, MnistCNN, Model, SeededDropout

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
RED_TEAM = RedTeam(every=2, attack=LossThreshold(), shadow_models=ShadowModels(number=2))
DEFENSES = [
    DPSGD(1.0, 0.5),
    DPSGD(0.5, 0.3, sampling="poisson"),
    Dropout(0.3),
    L2(0.1),
    NormClipping(0.2),
    Augmentation(20.0, 1.0, flip=True, crop=0.2),
    Mixup(0.4),
    Flooding(0.9),
    RelaxLoss(0.9, 0.8),
    CCL(beta=0.5),
    ShorterTraining(0.5),
    LaplaceNoise(0.5),
]
ALGORITHMS = [FedAvg(), IFCA(2), IFCAMIR()]
COMBINATIONS = [
    # The networks (which decide the backend) alternate, so each defence and each algorithm meets both.
    pytest.param(network, algorithm, defense, id=f"{network}-{type(algorithm).__name__}-{defense!r}")
    for i, defense in enumerate(DEFENSES)
    for j, algorithm in enumerate((FedAvg(), (IFCAMIR(), IFCA(2))[i // 2 % 2]))
    for network in [("cnn", "mlp")[(i + j) % 2]]
]


@pytest.fixture(params=DEFENSES, ids=repr)
def defense(request):
    return request.param


@pytest.fixture(params=ALGORITHMS, ids=lambda each: type(each).__name__)
def algorithm(request):
    return request.param


@pytest.fixture(scope="module")
def undefended(build):
    """The models (K, P) that a model and an algorithm end with, without a defence; each is trained once."""
    return cache(lambda model, algorithm: trained(model, build(), algorithm).models)


def played(model, federation, algorithm, *defenses, **settings):
    return simulate_with(
        federation, model, algorithm, LOCAL, **{"rounds": 3, "red_team": RED_TEAM, "defenses": defenses} | settings
    )


class TrainedError(Exception):
    """Ends a simulation before its models are attacked and measured; its argument is the state."""


def trained(model, federation, algorithm, *defenses, **settings):
    """The state after two rounds and their estimate of risk; attacks and figures would take as long as the rounds."""

    def watch(simulation, progress, report):
        if progress.state.round == simulation.rounds:
            raise TrainedError(progress.state)

    with pytest.raises(TrainedError) as ended:
        played(model, federation, algorithm, *defenses, **{"rounds": 2, "watch": watch} | settings)
    return ended.value.args[0]


@pytest.mark.parametrize(("network", "algorithm", "defense"), COMBINATIONS)
def test_every_defense_plays_every_algorithm(network, build, algorithm, defense, undefended, request):
    model = request.getfixturevalue(network)
    one = trained(model, build(), algorithm, defense, threads=1)
    assert not torch.equal(one.models, undefended(model, algorithm)), "the defence did nothing"
    two = trained(model, build(), algorithm, defense, threads=2)
    assert torch.equal(two.models, one.models)
    assert torch.equal(two.risks, one.risks)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = trained(model, build().take(order), algorithm, defense)
    torch.testing.assert_close(permuted.models, one.models, rtol=1e-5, atol=1e-6)
    assert torch.equal(permuted.assignment, one.assignment[order])


def test_all_defences_run_together(cnn, build, algorithm):
    found = played(cnn, build(), algorithm, Dropout(0.2), L2(0.01), DPSGD(1.0, 0.4), NormClipping(1.0))
    assert found.summary.overall["epsilon"] == found.clients["epsilon"].max()


def test_defenses_are_values(defense):
    assert pickle.loads(pickle.dumps(defense)) == defense
    assert eval(repr(defense)) == defense
    assert hash(defense) == hash(replace(defense))


def test_only_private_runs_say_what_they_spent(cnn, build):
    federation = build()
    found = played(cnn, federation, FedAvg(), DPSGD(1.0, 0.5, 1e-4), participation=0.5)
    assert (found.clients.columns[-1], found.summary.overall["delta"]) == ("epsilon", 1e-4)
    # Who took part is known from which epsilons are 0.
    assert (found.clients["epsilon"] > 0).sum() >= 3
    for size, spent in zip(federation.clients.sizes.tolist(), found.clients["epsilon"], strict=True):
        steps = LOCAL.steps_of(size)
        allowed = [accounting.composed_epsilon([(0.5, 4 / size, n * steps)], 1e-4) for n in range(4)]
        assert spent in allowed
    assert found.summary.overall["epsilon"] == found.clients["epsilon"].max()
    for others in ((), (Dropout(0.2), L2(0.1)), (DPSGD(math.inf, 0.0),)):
        plain = played(cnn, build(), FedAvg(), *others)
        assert "epsilon" not in plain.clients
        assert not {"epsilon", "delta"} & set(plain.summary.overall)
    clipped = played(cnn, build(), FedAvg(), DPSGD(1.0, 0.0))
    assert np.isinf(clipped.clients["epsilon"]).all()
    assert "epsilon" not in clipped.summary.overall


@pytest.mark.parametrize(
    "nothing",
    [
        DPSGD(math.inf, 0.0),
        Dropout(0.0),
        L2(0.0),
        NormClipping(math.inf),
        Augmentation(0.0, 0.0),
        Mixup(0.0),
        Flooding(0.0),
        RelaxLoss(0.0),
        ShorterTraining(1.0),
        LaplaceNoise(0.0),
    ],
    ids=repr,
)
def test_defences_at_strength_0_change_no_bit(model, build, undefended, nothing):
    assert torch.equal(trained(model, build(), IFCA(2), nothing).models, undefended(model, IFCA(2)))


def test_resumed_dropout_and_noise_are_uninterrupted(cnn, build):
    setup = apply_defenses(TrainingSetup(cnn, LOCAL), (Dropout(0.3), DPSGD(1.0, 0.5)))
    with Engine(setup.model, backend=resolve_backend(setup.model, setup.first_local())) as engine:
        training = Training(build(), IFCA(2), setup.local, engine, Stream(5), defenses=setup.defenses)
        whole = [each for each, _ in training.rounds(training.start(), 4)]
        later = [each for each, _ in training.rounds(pickle.loads(pickle.dumps(whole[1])), 4)]
    assert torch.equal(later[-1].models, whole[-1].models)


# Dropout


def test_dropout_keeps_names_and_rows(model):
    dropping = Dropout(0.3).to(model)
    assert dropping.layout == model.layout
    assert torch.equal(dropping.init(Stream(3)), model.init(Stream(3)))
    x = torch.rand(4, 1, 6, 6)
    network = dropping.network().eval()
    assert torch.equal(network(x), model.network().eval()(x)), "dropout in evaluation mode"


@pytest.mark.parametrize(
    ("build", "places"),
    [
        (lambda: MLP(36, 8, 3), ["output"]),
        (MnistCNN, ["output"]),
        (lambda: nn.Sequential(nn.Embedding(5, 4), nn.GRU(4, 3), nn.Linear(3, 3), nn.Linear(3, 2)), ["2", "3"]),
    ],
)
def test_dropout_stands_before_linear_layers_but_the_inputs(build, places):
    network = Dropout(0.3).to(Model(build)).network()
    found = [name for name, module in network.named_modules() if isinstance(module, SeededDropout)]
    assert found == [f"{place}.dropout" for place in places]


def test_masks_drop_their_share_and_keep_the_mean():
    layer = SeededDropout(0.3)
    layer.generator = torch.Generator().manual_seed(0)
    out = layer(torch.full((200, 500), 2.0))
    assert out.unique().tolist() == pytest.approx([0, 2 / 0.7])
    assert float((out == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert not torch.equal(layer(torch.full((200, 500), 2.0)), out)


def test_dropout_in_onednn_s_layout_is_dropout():
    model = Dropout(0.4).to(Model(MnistCNN))
    x, y = torch.rand(6, 28, 28, 1).movedim(-1, 1), torch.arange(6)
    rows = []
    for onednn in (True, False):
        bound = BoundNetwork(model, torch.device("cpu"), torch.float32)
        bound._onednn = bound._onednn and onednn
        bound.begin(model.init(Stream(1)), LocalSGD(learning_rate=0.1), None, 7)
        bound.network.train()
        for _ in range(3):
            bound.step(x, y)
        rows.append(bound.row.clone())
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-4, atol=1e-5)


def test_dropout_and_vmap_exclude_each_other(mlp):
    dropping = Dropout(0.3).to(mlp)
    assert (resolve_backend(mlp), resolve_backend(dropping)) == ("vmap", "loop")
    with pytest.raises(InputError, match=r"backend 'vmap' cannot train dropout"):
        Engine(dropping, backend="vmap")


def test_dropout_where_there_is_nothing_to_drop_is_refused():
    with pytest.raises(InputError, match="'dropout' needs a network"):
        Dropout(0.1).to(Model(lambda: Logistic(36, 3)))


# L2 and norm clipping


def test_l2_is_weight_decay_given_once(mlp):
    assert L2(0.02).apply(TrainingSetup(mlp, LOCAL)).first_local() == replace(LOCAL, weight_decay=0.02)
    with pytest.raises(InputError, match=r"'local.weight_decay' must be 0 .*\(got 0.1\)"):
        L2(0.02).apply(TrainingSetup(mlp, replace(LOCAL, weight_decay=0.1)))


def test_updates_are_cut_to_the_norm_and_no_further():
    draw = torch.Generator().manual_seed(0)
    starts, moved = torch.randn(5, 8, generator=draw), torch.randn(5, 8, generator=draw)
    moved *= torch.tensor([0.1, 0.5, 1.0, 3.0, 0.0])[:, None]
    ends = starts + moved
    norms = (ends - starts).norm(dim=1)
    bound = float(norms[2]) * 0.99
    kept = NormClipping(bound).filter(starts, ends, torch.zeros(5, dtype=torch.int64))
    torch.testing.assert_close((kept - starts).norm(dim=1), norms.clamp(max=bound))
    torch.testing.assert_close(
        torch.cosine_similarity(kept - starts, ends - starts)[:4], torch.ones(4), rtol=1e-5, atol=1e-5
    )
    within = norms <= bound
    assert torch.equal(kept[within], ends[within])
    assert within.tolist() == [True, True, False, False, True]


def test_the_server_merges_what_was_cut(mlp, build):
    before = played(mlp, build(), FedAvg(), rounds=1)
    with Engine(mlp) as engine:
        start = Training(build(), FedAvg(), LOCAL, engine, Stream(0)).start().models
    assert float((before.state.models - start).norm()) > 0.01
    after = played(mlp, build(), FedAvg(), NormClipping(0.01), rounds=1)
    assert float((after.state.models - start).norm()) <= 0.01 * (1 + 1e-4)


def test_two_filters_of_the_server_are_refused(mlp):
    with pytest.raises(InputError, match="another filter"):
        apply_defenses(TrainingSetup(mlp, LOCAL), (NormClipping(1.0), NormClipping(2.0)))


@pytest.mark.parametrize(
    ("defense", "settings", "sentence"),
    [
        (Augmentation, {"rotation": -1.0}, "'rotation' must be at least 0 (got -1.0"),
        (Augmentation, {"rotation": 181.0}, "'rotation' must be at most 180 (got 181.0"),
        (Augmentation, {"shift": -0.5}, "'shift' must be at least 0 (got -0.5"),
        (Augmentation, {"shift": math.inf}, "'shift' must be a finite number (got inf"),
        (Augmentation, {"flip": 0.5}, "'flip' must be true or false (got 0.5"),
        (Augmentation, {"crop": 1.0}, "'crop' must be below 1 (got 1.0"),
        (
            DPSGD,
            {"noise_multiplier": 0.5, "max_grad_norm": math.inf},
            "'max_grad_norm' must be finite with noise",
        ),
        (DPSGD, {"noise_multiplier": math.nan}, "'noise_multiplier' must be a finite number (got nan"),
        (DPSGD, {"noise": "sum"}, "'min_clients' is missing"),
        (DPSGD, {"min_clients": 3}, "'min_clients' needs noise = 'sum'"),
        (
            DPSGD,
            {"noise": "sum", "min_clients": 3, "sampling": "poisson"},
            "'sampling' must be 'shuffled' with noise = 'sum'",
        ),
        (DPSGD, {"delta": 0.0}, "'delta' must be above 0 (got 0.0"),
        (DPSGD, {"sampling": "fixed"}, "'sampling' must be 'shuffled' or 'poisson' (got 'fixed'"),
        (Mixup, {"alpha": -0.1}, "'alpha' must be at least 0 (got -0.1"),
        (Mixup, {"alpha": math.inf}, "'alpha' must be a finite number (got inf"),
        (Flooding, {"level": -1.0}, "'level' must be at least 0 (got -1.0"),
        (RelaxLoss, {"alpha": -1.0}, "'alpha' must be at least 0 (got -1.0"),
        (RelaxLoss, {"alpha": 1.0, "upper": 0.0}, "'upper' must be above 0 (got 0.0"),
        (RelaxLoss, {"alpha": 1.0, "upper": 1.5}, "'upper' must be at most 1 (got 1.5"),
        (CCL, {"variant": "cce"}, "'variant' must be 'ccel' or 'ccql' (got 'cce'"),
        (CCL, {"alpha": 1.1}, "'alpha' must be at most 1 (got 1.1"),
        (CCL, {"beta": 0.0}, "'beta' must be above 0 (got 0.0"),
        (ShorterTraining, {"share": 0.0}, "'share' must be above 0 (got 0.0"),
        (ShorterTraining, {"share": 1.5}, "'share' must be at most 1 (got 1.5"),
    ],
)
def test_a_setting_outside_its_range_is_refused(defense, settings, sentence):
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}"):
        defense(**settings)
