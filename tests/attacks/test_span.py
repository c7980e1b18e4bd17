"""The span attack: laws of spans, whatever local training, algorithm and server do; and a plain SVD as reference."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.attacks import Candidates, Knowledge, ModelSpan, OwnedRecords, ServerOptimizer, UpdateSpan
from shoal.attacks.span.layer_scores import calibrate_scores
from shoal.attacks.span.row_space import row_spaces
from shoal.core.errors import InputError
from shoal.engine import Engine, LocalSGD, RoundUpdates, Training

CLIENTS, EXAMPLES, INPUTS, CLASSES = 5, 6, 60, 3


@pytest.fixture
def federation():
    draw = shoal.Stream(1).generator()
    labels = torch.arange(EXAMPLES) % CLASSES
    clients = [(torch.rand(EXAMPLES, INPUTS, generator=draw), labels) for _ in range(CLIENTS)]
    test = torch.rand(200, INPUTS, generator=draw), torch.arange(200) % CLASSES
    return shoal.Federation.from_tensors(clients, test=test)


@pytest.fixture
def mlp():
    return shoal.create_model("mlp", shoal.VectorShape(inputs=INPUTS, classes=CLASSES), hidden=40)


def seen(federation, model, algorithm=None, local=None, rounds=2, *, precision="fp32", defenses=()):
    """The models (T + 1, K, P) and recorded updates of some rounds, the training, and its engine."""
    with Engine(model, threads=1, precision=precision) as engine:
        training = Training(
            federation, algorithm or shoal.FedAvg(), local or LocalSGD(epochs=3, batch_size=3), engine,
            shoal.Stream(0), defenses=defenses, record_every=1,
        )  # fmt: skip
        state = training.start()
        models, updates = [state.models], []
        for after, report in training.rounds(state, rounds):
            models.append(after.models)
            updates.append(report.updates)
    return torch.stack(models), updates, engine


def asked(federation, labels=False):
    """All clients' records, then forty that nobody trained on; the rest of these are known."""
    records = OwnedRecords.from_federation(federation)
    x, y, count = records.x, records.y, CLIENTS * EXAMPLES
    candidates = Candidates(x[: count + 40], known=x[count + 40 :])
    if labels:
        candidates = replace(candidates, y=y[: count + 40], known_y=y[count + 40 :])
    return candidates, records.client[: count + 40].numpy()


def assert_exact(found, owner):
    """Every client's own records are members, and nothing else."""
    assert found.exact.all()
    assert (found.rank == EXAMPLES).all()
    np.testing.assert_array_equal(found.score > found.threshold, owner == np.arange(CLIENTS)[:, None])


def test_the_score_is_that_of_a_plain_singular_value_decomposition(federation):
    model = shoal.Model(lambda: nn.Linear(INPUTS, 20))
    _, updates, engine = seen(federation, model, rounds=1)
    candidates, _ = asked(federation)
    found = UpdateSpan().score(updates, candidates, engine)
    x = torch.cat([candidates.x, torch.ones(len(candidates.x), 1)], dim=1).double().numpy()
    for client, update in enumerate(updates[0].updates):
        views = model.layout.views(update)
        move = torch.cat([views["weight"], views["bias"][:, None]], dim=1).double().numpy()
        basis = np.linalg.svd(move, full_matrices=False)[2][: found.rank[client]]
        residual = np.linalg.norm(x - x @ basis.T @ basis, axis=1) / np.linalg.norm(x, axis=1)
        np.testing.assert_allclose(found.score[client], -residual, atol=1e-6)


LOCALS = {
    "plain": LocalSGD(epochs=3, batch_size=3),
    "momentum and decay of the rate": LocalSGD(epochs=3, batch_size=3, momentum=0.9, learning_rate=0.05, decay=0.9),
    "clipping": LocalSGD(epochs=3, batch_size=3, clip_norm=0.1),
    "weight decay": LocalSGD(epochs=3, batch_size=3, weight_decay=0.05),
    "weight decay with momentum": LocalSGD(epochs=3, batch_size=3, weight_decay=0.05, momentum=0.5),
}


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS)
@pytest.mark.parametrize("examples", [EXAMPLES, None], ids=["known steps", "unknown steps"])
def test_the_server_recognises_every_record_of_every_client(federation, mlp, local, examples):
    _, updates, engine = seen(federation, mlp, local=local)
    candidates, owner = asked(federation)
    found = UpdateSpan().score(updates, candidates, engine, Knowledge(local, examples=examples))
    assert_exact(found, owner)
    assert found.layer == "hidden"
    assert found.direct
    members = found.score[owner == np.arange(CLIENTS)[:, None]]
    assert members.min() > -1e-4


def test_in_bfloat16_records_are_recognised_up_to_its_rounding(federation, mlp):
    _, updates, engine = seen(federation, mlp, precision="bf16")
    candidates, owner = asked(federation)
    assert_exact(UpdateSpan().score(updates, candidates, engine, Knowledge(dtype=torch.bfloat16)), owner)


ALGORITHMS = {
    "FedProx": (shoal.FedProx(mu=0.5), Knowledge(proximal=0.5)),
    "SCAFFOLD": (shoal.Scaffold(), Knowledge(LOCALS["plain"], control_variates=True)),
    "FedRep": (shoal.FedRep(), Knowledge()),
    "server momentum": (shoal.FedOpt(optimizer="sgd", learning_rate=1.0), Knowledge()),
}


@pytest.mark.parametrize(("algorithm", "knowledge"), ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_server_recognises_records_under_other_algorithms(federation, mlp, algorithm, knowledge):
    _, updates, engine = seen(federation, mlp, algorithm, rounds=3)
    candidates, owner = asked(federation)
    assert_exact(UpdateSpan().score(updates, candidates, engine, knowledge), owner)


SERVERS = {
    "mean": (shoal.FedAvg(), None),
    "sgd": (shoal.FedOpt(optimizer="sgd", learning_rate=1.0), ServerOptimizer("sgd", 1.0, 0.9, 0.99, 1e-3)),
    "adam": (shoal.FedOpt(), ServerOptimizer("adam", 0.01, 0.9, 0.99, 1e-3)),
}


@pytest.mark.parametrize(("algorithm", "server"), SERVERS.values(), ids=SERVERS)
def test_a_client_recognises_everybodys_records_by_the_models_moves(federation, mlp, algorithm, server):
    models, _, engine = seen(federation, mlp, algorithm)
    candidates, owner = asked(federation)
    found = ModelSpan().score(models, candidates, engine, Knowledge(server=server))
    assert found.exact.all()
    np.testing.assert_array_equal(found.score[0] > found.threshold[0], owner >= 0)
    if server is None:
        two_snapshots = ModelSpan().score(models[[0, -1]], candidates, engine)
        np.testing.assert_array_equal(two_snapshots.score[0] > two_snapshots.threshold[0], owner >= 0)


POOLED = {
    "one share": shoal.Pooling(shoal.IFCA(2), share=0.4),
    "over a server's momentum": shoal.Pooling(
        shoal.FedOpt(shoal.IFCA(2), optimizer="sgd", learning_rate=1.0), share=0.3
    ),
}


@pytest.mark.parametrize("algorithm", POOLED.values(), ids=POOLED)
def test_a_client_undoes_pooling_whose_share_it_knows(federation, mlp, algorithm):
    models, updates, engine = seen(federation, mlp, algorithm, rounds=3)
    assert all(0 < round_of.assignment.sum() < CLIENTS for round_of in updates), "clients of both models"
    candidates, owner = asked(federation)
    server = ServerOptimizer("sgd", 1.0, 0.9, 0.99, 1e-3) if isinstance(algorithm.base, shoal.FedOpt) else None
    known = Knowledge(pooling=algorithm.share, cohort=CLIENTS, server=server)
    found = ModelSpan().score(models, candidates, engine, known)
    assert found.exact.all()
    trained = {(k, i) for of in updates for i, k in enumerate(of.assignment.tolist())}
    of_model = np.array([[(k, i) in trained for i in owner] for k in range(2)])
    np.testing.assert_array_equal(found.score > found.threshold, of_model)
    alone = replace(candidates, x=candidates.x[torch.from_numpy(owner < 0)])
    assert not ModelSpan().score(models, alone, engine, known).exact.any(), "nobody trained on these"
    assert not ModelSpan().score(models, candidates, engine, replace(known, pooling=0.0)).exact.any(), "not undone"


@pytest.mark.parametrize("inputs", [30, 120], ids=["few inputs", "too many for the leading vectors"])
def test_the_row_space_of_a_large_move_is_that_of_its_singular_vectors(inputs):
    draw, noise = shoal.Stream(0).generator(), 1e-8
    pieces = torch.randn(150, inputs, generator=draw), torch.rand(inputs, 200, generator=draw)
    move = (pieces[0] @ pieces[1]).double() + noise * torch.randn(150, 200, generator=draw)
    tall, wide = row_spaces([move.T, move], [noise, noise])
    _, singular, vectors = torch.linalg.svd(move)
    assert wide.rank == tall.rank == inputs
    assert torch.allclose(wide.singular, singular[:inputs], rtol=1e-9)
    assert torch.allclose(wide.basis @ wide.basis.T, vectors[:inputs].T @ vectors[:inputs], atol=1e-8)
    assert wide.residuals(pieces[1])[0].max() < 1e-6


def test_numbers_that_are_not_sent_are_left_out(federation, mlp):
    models, _, engine = seen(federation, mlp)
    whole, head = models.clone(), mlp.layout.slices({"output.weight", "output.bias"})
    for piece in head:
        models[..., piece] = torch.nan
    candidates, _ = asked(federation)
    np.testing.assert_array_equal(
        ModelSpan().score(models, candidates, engine).score, ModelSpan().score(whole, candidates, engine).score
    )


def test_scores_do_not_depend_on_the_order_of_records(federation, mlp):
    _, updates, engine = seen(federation, mlp)
    candidates, _ = asked(federation)
    order = torch.randperm(len(candidates.x), generator=shoal.Stream(3).generator())
    found = UpdateSpan().score(updates, candidates, engine)
    mixed = UpdateSpan().score(updates, replace(candidates, x=candidates.x[order]), engine)
    np.testing.assert_allclose(mixed.score, found.score[:, order], atol=1e-6)
    np.testing.assert_array_equal(mixed.score > mixed.threshold, (found.score > found.threshold)[:, order])


def test_records_asked_of_one_client_have_its_score_alone(federation, mlp):
    _, updates, engine = seen(federation, mlp)
    candidates, owner = asked(federation)
    row = torch.from_numpy(owner)
    found = UpdateSpan().score(updates, candidates, engine)
    alone = UpdateSpan().score(updates, replace(candidates, row=row), engine)
    of_owner = owner == np.arange(CLIENTS)[:, None]
    np.testing.assert_array_equal(np.isnan(alone.score), ~of_owner)
    np.testing.assert_allclose(alone.score[of_owner], found.score[of_owner], atol=1e-6)


@pytest.mark.parametrize("labels", [False, True])
def test_the_span_of_other_records_claims_none_of_those_asked(federation, mlp, labels):
    _, updates, engine = seen(federation, mlp)
    candidates, owner = asked(federation, labels)
    others = torch.from_numpy(owner < 0)
    absent = replace(candidates, x=candidates.x[others], y=candidates.y[others] if labels else None)
    found = UpdateSpan().score(updates, absent, engine)
    assert not found.exact.any()
    # The threshold lets one known non-member in twenty pass.
    assert (found.score > found.threshold).mean() < 0.2


@pytest.mark.parametrize("labels", [False, True])
def test_without_a_span_non_members_of_every_kind_are_called_at_the_stated_rate(labels):
    """Records of a client's group and labels lie closer to its moves than others, so thresholds are of their mix."""
    draw, directions = shoal.Stream(6).generator(), 3 * torch.randn(6, INPUTS, generator=shoal.Stream(7).generator())

    def records(count, group):
        y = torch.arange(count) % CLASSES
        return torch.randn(count, INPUTS, generator=draw) + directions[CLASSES * group + y], y

    shares = []
    for _ in range(6):
        clients = [records(9, 0), records(9, 1)]
        federation = shoal.Federation.from_tensors(clients, test=records(9, 0))
        model = shoal.create_model("mlp", shoal.VectorShape(inputs=INPUTS, classes=CLASSES), hidden=40)
        _, updates, engine = seen(federation, model)
        (x, y), (known, known_y) = (
            (torch.cat(both) for both in zip(records(90, 0), records(90, 1), strict=True)) for _ in "ab"
        )
        group = torch.arange(180) // 90
        strata = (torch.stack([group, CLASSES * group + of], dim=1) for of in (y, known_y))
        more = {"y": y, "known_y": known_y} if labels else {}
        found = UpdateSpan().score(updates, Candidates(x, known, *strata, row=group, **more), engine)
        assert not found.exact.any()
        called = np.where(np.isnan(found.score), np.nan, found.score > found.threshold)
        shares.append(np.nanmean(called, axis=1))
    # 540 records of each client; their thresholds are of 90 known ones each.
    np.testing.assert_allclose(np.mean(shares, axis=0), 0.05, atol=0.035)


def test_known_records_are_weighted_to_the_strata_that_are_asked():
    draw = np.random.default_rng(0)
    kind = np.repeat([0, 1], [1800, 200])[:, None]
    others, asked = draw.normal(3.0 * kind[:, 0]), np.repeat([0, 1], [100, 900])[:, None]
    strata = np.zeros_like(kind), np.zeros_like(asked)
    cuts = calibrate_scores(others, np.hstack([strata[0], kind]), np.hstack([strata[1], asked]), 0.05)
    assert len(np.unique(cuts)) == 1
    assert (draw.normal(3.0 * np.repeat(asked, 50)) > cuts[0]).mean() == pytest.approx(0.05, abs=0.02)
    # Strata of fewer than five known records are left to a coarser column; a new one to all.
    few = np.where(np.arange(2000) < 4, 2, kind[:, 0])[:, None]
    (of_few,) = calibrate_scores(others, np.hstack([strata[0], few]), np.array([[0, 2]]), 0.05)
    assert of_few == pytest.approx(calibrate_scores(others, strata[0], np.zeros((1, 1)), 0.05)[0])


def test_more_records_than_rows_are_told_apart_by_the_filter():
    draw = shoal.Stream(4).generator()
    labels = torch.arange(40) % CLASSES
    federation = shoal.Federation.from_tensors(
        [(torch.rand(40, INPUTS, generator=draw), labels)],
        test=(torch.rand(240, INPUTS, generator=draw), torch.arange(240) % CLASSES),
    )
    model = shoal.create_model("mlp", shoal.VectorShape(inputs=INPUTS, classes=CLASSES), hidden=16)
    models, _, engine = seen(federation, model, local=LocalSGD(steps=1, batch_size="all"), rounds=1)
    records, member = OwnedRecords.from_federation(federation), np.arange(80) < 40
    candidates = Candidates(records.x[:80], known=records.x[80:])
    blind = ModelSpan().score(models, candidates, engine)
    labelled = ModelSpan().score(models, replace(candidates, y=records.y[:80], known_y=records.y[80:]), engine)
    assert not blind.exact.any()
    assert not labelled.exact.any()
    assert auc(labelled.score[0], member) > auc(blind.score[0], member) + 0.05
    assert auc(labelled.score[0], member) > 0.9


def test_noise_leaves_no_exact_span_and_the_filter_finds_more_than_leverages(federation, mlp):
    private = shoal.DPSGD(max_grad_norm=1.0, noise_multiplier=0.05)
    _, updates, engine = seen(federation, mlp, defenses=(private,))
    local = replace(LOCALS["plain"], gradient_privacy=private)
    means = []
    for labels in (False, True):
        candidates, owner = asked(federation, labels)
        found = UpdateSpan().score(updates, candidates, engine, Knowledge(local, examples=EXAMPLES))
        assert found.noisy
        assert not found.exact.any()
        rows = [
            auc(found.score[i][(owner == i) | (owner < 0)], (owner == i)[(owner == i) | (owner < 0)])
            for i in range(CLIENTS)
        ]
        means.append(np.mean(rows))
    assert means[1] > max(0.8, means[0])


def auc(score, member):
    above = score[member][:, None] - score[~member]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def test_a_deeper_layer_is_exact_after_one_step_by_the_features_of_the_rounds_start():
    draw = shoal.Stream(5).generator()
    labels = torch.arange(EXAMPLES) % CLASSES
    images = [(torch.rand(EXAMPLES, 1, 8, 8, generator=draw), labels) for _ in range(CLIENTS)]
    federation = shoal.Federation.from_tensors(
        images, test=(torch.rand(80, 1, 8, 8, generator=draw), torch.arange(80) % CLASSES)
    )
    model = shoal.Model(lambda: shoal.models.DigitsCNN(classes=CLASSES))
    _, updates, engine = seen(federation, model, local=LocalSGD(steps=1, batch_size="all"), rounds=2)
    candidates, owner = asked(federation)
    found = UpdateSpan().score(updates, candidates, engine)
    assert (found.layer, found.direct) == ("hidden", False)
    assert_exact(found, owner)


@pytest.mark.parametrize(("examples", "exact"), [(6, True), (20, False)], ids=["24 patches", "80 patches"])
def test_a_convolution_of_separate_patches_is_attacked_until_they_outnumber_its_inputs(examples, exact):
    """Four patches an image, of 36 inputs and a bias each."""
    draw = shoal.Stream(8).generator()

    def images(count):
        return torch.rand(count, 1, 12, 12, generator=draw), torch.arange(count) % CLASSES

    federation = shoal.Federation.from_tensors([images(examples) for _ in range(2)], test=images(80))

    def network():
        head = (nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, CLASSES))
        return nn.Sequential(nn.Conv2d(1, 48, 6, stride=6), *head)

    _, updates, engine = seen(federation, shoal.Model(network), rounds=1)
    records = OwnedRecords.from_federation(federation)
    x, owner = records.x[: 2 * examples + 20], records.client[: 2 * examples + 20].numpy()
    found = UpdateSpan(layer="0").score(updates, Candidates(x, known=records.x[len(x) :]), engine)
    assert (found.inputs, found.direct) == (37, True)
    assert (found.exact == exact).all()
    if exact:
        assert (found.rank == 24).all()
        np.testing.assert_array_equal(found.score > found.threshold, owner == np.arange(2)[:, None])
    else:
        assert (found.rank == 37).all()


def test_a_chosen_layer_is_attacked(federation, mlp):
    _, updates, engine = seen(federation, mlp)
    candidates, _ = asked(federation)
    found = UpdateSpan(layer="output").score(updates, candidates, engine)
    assert (found.layer, found.inputs, found.direct) == ("output", 41, False)
    with pytest.raises(InputError, match=r"'layer' .* 'hiden'.* 'hidden', 'output'"):
        UpdateSpan(layer="hiden").score(updates, candidates, engine)


class Scale(nn.Module):
    """A network without a dense layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(CLASSES))

    def forward(self, x):
        return x[:, :CLASSES] * self.scale


def test_wrong_input_is_refused_in_one_sentence(federation, mlp):
    (candidates, _), (models, updates, engine) = asked(federation), seen(federation, mlp, rounds=1)
    scales, of_scale, without = seen(federation, shoal.Model(Scale), rounds=1)
    broken = replace(updates[0], updates=updates[0].updates * torch.nan)
    for call, sentence in (
        (lambda: UpdateSpan().score([], candidates, engine), "'rounds' must hold the updates of at least one round"),
        (lambda: UpdateSpan().score([broken], candidates, engine), "finite"),
        (lambda: ModelSpan().score(models[:1], candidates, engine), "'models' must have shape"),
        (lambda: replace(candidates, stratum=torch.zeros(3)), "'stratum' must have shape"),
        (lambda: Candidates(candidates.x[:0]), "'x' "),
        (lambda: UpdateSpan().score(of_scale, candidates, without), "no trained dense layer"),
        (lambda: ModelSpan().score(scales, candidates, without), "no trained dense layer"),
    ):
        with pytest.raises(InputError, match=sentence):
            call()


def test_a_client_that_moved_nothing_has_no_score(federation, mlp):
    _, updates, engine = seen(federation, mlp, rounds=1)
    idle = RoundUpdates(1, updates[0].clients, updates[0].assignment, updates[0].models, updates[0].updates.clone())
    idle.updates[2] = 0
    candidates, _ = asked(federation)
    found = UpdateSpan().score([idle], candidates, engine)
    np.testing.assert_array_equal(np.isnan(found.score).all(axis=1), np.arange(CLIENTS) == 2)
    assert found.rank[2] == 0


def test_known_non_members_of_the_groups_that_are_asked_decide_whether_a_span_is_exact(federation, mlp):
    """Without known ones of these groups, those of all groups decide."""
    _, updates, engine = seen(federation, mlp)
    candidates, _ = asked(federation)
    own = CLIENTS * EXAMPLES
    mixed = replace(
        candidates,
        known=torch.cat([candidates.x[:own], candidates.known]),  # The first lie in the spans, the others do not.
        stratum=torch.ones(len(candidates.x), dtype=torch.int64),
    )
    inside = torch.arange(len(mixed.known)) < own
    elsewhere = replace(mixed, known=candidates.known), torch.zeros(len(candidates.known), dtype=torch.int64)
    for (one, group), exact in (((mixed, (~inside).long()), True), ((mixed, inside.long()), False), (elsewhere, True)):
        found = UpdateSpan().score(updates, replace(one, known_stratum=group), engine)
        assert found.exact.tolist() == [exact] * CLIENTS
