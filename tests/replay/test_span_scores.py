"""The span attacks on the first rounds of a run and of its reference federations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacked_run import attacked_run
from every_algorithm import ALGORITHMS
from shoal.attacks import Candidates, Gap, SpanScores
from shoal.audit import AuditRecords, RedTeam
from shoal.audit.record_table import measure
from shoal.config.build import build
from shoal.data.preferences import VIEWS
from shoal.engine import Engine, LocalSGD
from shoal.replay import first_rounds, reference_federations
from shoal.replay.attack_inputs import records_of_run
from shoal.replay.reference_federations import AttackedRun
from shoal.replay.reference_store import reference_scores, view_scores
from shoal.replay.span_scores import SPAN_NAMES, SpansOfRun, largest, spans_to_repeat
from shoal.simulation.simulation import Simulation


@pytest.fixture(scope="module")
def dense(toy_config):
    """A run whose clients have few images and whose first layer is wide, and its engine."""
    config = toy_config(data__examples_per_client=6, model__hidden=40, algorithm__name="ifca", data__test_examples=80)
    _, simulation = build(config)
    with Engine(simulation.setup.model, threads=1) as engine:
        yield attacked_run(simulation, engine), engine


def audited(attacked: AttackedRun, engine: Engine) -> AuditRecords:
    records = records_of_run(attacked, attacked.scores(engine), [], engine)
    return replace(records, further=attacked.spans(engine).scores)


def test_the_server_recognises_every_record_and_members_at_random_are_at_chance(dense):
    records = audited(*dense)
    found = measure(records.rows_of("span", records.further["span"]))
    assert found.auc == 1.0
    assert found.accuracy > 0.95
    coins = (np.random.default_rng(0).random(len(records) // 2) < 0.5)[records.pair]
    member = records.scores.member ^ coins
    swapped = replace(records, scores=replace(records.scores, member=member))
    for name in ("span", "span-models"):
        null = measure(swapped.rows_of(name, swapped.further[name]))
        assert null.auc_low < 0.5 < null.auc_high


def test_a_view_has_the_attacks_of_those_that_see_less(dense):
    attacked, engine = dense
    target = attacked.scores(engine)
    names = {view: [*view_scores(attacked, target, [], engine, view=view)[0]] for view in VIEWS}
    client = ["span-models", "joint-models"]
    assert names == {"outsider": [], "client": client, "server": ["span-models", "span", "joint-models"]}


def test_records_of_clients_that_were_not_seen_have_no_score(toy_config, monkeypatch):
    for module in (first_rounds, reference_federations):
        monkeypatch.setattr(module, "ROUNDS", 1)
    _, simulation = build(toy_config(algorithm__participation=0.5, algorithm__name="ifca"))
    with Engine(simulation.setup.model, threads=1) as engine:
        attacked = attacked_run(simulation, engine)
        seen, _ = attacked.first_rounds(engine, 1)
        assert seen is not None
        records = audited(attacked, engine)
    sent = torch.isin(simulation.federation.ids[attacked.records.client], seen.updates[0].clients).numpy()
    assert 0 < sent.sum() < len(sent)
    for name in ("span-models", "span"):
        assert np.array_equal(~np.isnan(records.further[name].score), sent)
        assert len(records.rows_of(name, records.further[name])) == sent.sum()


def test_references_keep_their_scores_and_an_interruption_loses_none(dense, tmp_path, monkeypatch):
    attacked, engine = dense
    target = attacked.scores(engine)
    whole = reference_scores(attacked, target, 2, engine, folder=tmp_path / "whole")
    for scores in whole:
        member = scores.member.numpy()
        assert scores.spans["span"].numpy()[member].min() > scores.spans["span"].numpy()[~member].max()
    reference_scores(attacked, target, 1, engine, folder=tmp_path / "part")
    again = reference_scores(attacked, target, 2, engine, folder=tmp_path / "part")
    monkeypatch.setattr(AttackedRun, "train_reference", lambda *_: pytest.fail("it is in the folder"))
    read = reference_scores(attacked, target, 2, engine, folder=tmp_path / "part")
    for one, two, three in zip(whole, again, read, strict=True):
        for name in SPAN_NAMES:
            assert torch.equal(one.spans[name], two.spans[name])
            assert torch.equal(one.spans[name], three.spans[name])


def test_a_span_that_is_exact_is_not_asked_of_references_and_another_is_added_where_a_stack_reads_it(dense, tmp_path):
    attacked, engine = dense
    found, target = attacked.spans(engine).scores, attacked.scores(engine)
    assert found["span"].exact.all()
    unsure = {"span": found["span"], "span-models": replace(found["span-models"], exact=~found["span"].exact)}
    spans = SpansOfRun(unsure, {}, repeat=("span-models", "span"))
    assert spans_to_repeat(spans, 8) == ("span-models",)
    assert spans_to_repeat(spans, 7) == ()
    (none,) = reference_scores(attacked, target, 1, engine, folder=tmp_path, spans=())
    (one,) = reference_scores(attacked, target, 1, engine, folder=tmp_path, spans=("span-models",))
    (both,) = reference_scores(attacked, target, 1, engine, folder=tmp_path)
    assert [{*each.spans} for each in (none, one, both)] == [set(), {"span-models"}, {"span-models", "span"}]
    assert torch.equal(one.spans["span-models"], both.spans["span-models"])
    seen = view_scores(attacked, target, [one], engine)[0]
    assert seen["span"].reference is None
    assert seen["span-models"].reference is not None


def test_updates_that_do_not_fit_into_memory_are_left_out(dense, monkeypatch):
    attacked, engine = dense
    monkeypatch.setattr(first_rounds, "MAX_BYTES", 1000)
    scores, omitted, *_ = attacked.spans(engine)
    assert [*scores] == ["span-models", "joint-models"]
    assert "of memory" in omitted["span"]
    assert "of memory" in omitted["joint"]


def test_a_run_that_cannot_be_repeated_says_so(dense):
    attacked, engine = dense
    other = replace(attacked, rows=tuple({**row, "clients": 0} for row in attacked.rows))
    scores, omitted, *_ = other.spans(engine)
    assert not scores
    assert {*omitted} == {"span-models", "span"}


def test_models_are_compared_by_their_known_non_members():
    score, known = np.array([[-1e-9, -0.5], [-0.02, -0.021]]), np.array([[-0.4, -0.6, -0.5], [-0.02, -0.019, -0.021]])
    threshold, one = np.array([[-1e-3] * 2, [-0.015] * 2]), np.ones(2, dtype=np.int64)
    found = SpanScores(score, threshold, one > 0, one, known, "hidden", 5, direct=True, noisy=False)
    of_largest = largest(found, Candidates(torch.zeros(2, 4), known=torch.zeros(3, 4)))
    np.testing.assert_array_equal(of_largest.score > of_largest.threshold, [True, False])
    assert of_largest.exact.all()


def test_the_largest_of_many_scores_has_the_stated_share_of_false_alarms():
    """The largest of ten scores exceeds the threshold of one three to eight times as often."""
    draw = np.random.default_rng(0)
    both = -(10.0 ** draw.normal(size=(10, 6000)))
    group, none = torch.arange(6000) % 2, np.zeros(10, dtype=np.int64)
    both[:, group == 1] /= 3
    score, known = both[:, :4000], both[:, 4000:]
    cut = np.repeat(np.quantile(known, 0.95, axis=1)[:, None], 4000, axis=1)
    found = SpanScores(score, cut, none > 0, none, known, "hidden", 5, direct=True, noisy=False)
    candidates = Candidates(torch.zeros(4000, 1), torch.zeros(2000, 1), group[:4000], group[4000:])
    of_largest = largest(found, candidates)
    assert not of_largest.exact.any()
    for value in (0, 1):
        assert (of_largest.score > of_largest.threshold)[group[:4000] == value].mean() == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_every_algorithm_is_attacked_or_says_why_not(algorithm, build, mlp):
    local, team = LocalSGD(epochs=2, batch_size=4), RedTeam(every=2, attack=Gap())
    federation = build(sizes=(6, 6, 6, 6, 6, 6))
    simulation = Simulation(federation, mlp, algorithm, local, rounds=2, seed=1, red_team=team)
    with Engine(mlp, threads=1) as engine:
        attacked = attacked_run(simulation, engine)
        scores, omitted, *_ = attacked.spans(engine)
        assert {*SPAN_NAMES} <= {*scores} | {*omitted}
        for found in scores.values():
            assert np.isfinite(found.score).any()
        reference = attacked.train_reference(0, engine)
        assert reference.spans["span"].shape == reference.score.shape
