"""Reference federations: the attacked run again, with half of the records exchanged and nothing else."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import shoal
from attacked_run import attacked_run
from shoal.attacks import LiRA
from shoal.audit import RedTeam
from shoal.config.build import build
from shoal.core.errors import InputError
from shoal.engine import Engine
from shoal.metrics import membership_metrics
from shoal.replay import reference_federations
from shoal.replay.attack_inputs import join_scores
from shoal.replay.reference_federations import AttackedRun
from shoal.replay.span_scores import SPAN_NAMES
from shoal.replay.stages import RecordedRisks, matching_engine
from shoal.simulation.play import initial_state


@pytest.fixture(scope="module")
def attacked(toy_config):
    """Makes a toy run, once, and gives it with its engine; the keywords change its configuration."""
    engines, made = [], {}

    def make(**changes):
        if repr(changes) not in made:
            made[repr(changes)] = play(**changes)
        return made[repr(changes)]

    def play(**changes):
        _, simulation = build(toy_config(**changes))
        engine = Engine(simulation.setup.model, threads=1)
        engines.append(engine)
        return attacked_run(simulation, engine), engine

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        # Who is moved is drawn at random: the same clients in the replay.
        {"algorithm__name": "cluster-size-floor", "algorithm__base": {"name": "ifca-mir"}, "algorithm__min_clients": 4},
    ],
    ids=["ifca-mir", "cluster-size-floor"],
)
def test_recorded_risks_replay_the_run_bit_for_bit(attacked, algorithm):
    run, engine = attacked(algorithm__rounds=6, **algorithm)
    replay = replace(
        run.simulation, federation=run.records.swap_records(torch.zeros(len(run.records), dtype=torch.bool))
    )
    training = replace(replay.on(engine), risk_estimator=run.risks)
    for state, _ in training.rounds(initial_state(replay, engine).state, replay.rounds):
        last = state
    assert torch.equal(last.models, run.state.models)
    assert torch.equal(last.assignment, run.state.assignment)
    assert not torch.equal(last.risks, torch.full_like(last.risks, 0.5)), "or the risks were not replayed at all"


def test_risks_of_another_number_of_models_are_not_taken_over(attacked):
    run, engine = attacked(algorithm__rounds=2)
    estimator = RecordedRisks(2, {2: torch.tensor([0.7, 0.8, 0.9])})
    kept = estimator.estimate(run.state, run.simulation.federation, engine, (), run.stream).risks
    assert torch.equal(kept, run.state.risks)


def test_two_federations_train_on_opposite_records(attacked):
    run, engine = attacked()
    for number in (0, 2):
        assert torch.equal(run.exchanged(number), ~run.exchanged(number + 1))
    assert not torch.equal(run.exchanged(0), run.exchanged(2))
    first, second = (run.train_reference(number, engine) for number in (0, 1))
    assert torch.equal(first.member, ~second.member)
    pairs = len(run.records)
    assert torch.equal(first.member[:pairs], ~first.member[pairs:])
    assert torch.equal(run.scores(engine).member, torch.arange(2 * pairs) < pairs)


def test_a_reference_federation_depends_on_its_number_alone(attacked):
    run, engine = attacked()
    later = run.train_reference(3, engine)
    run.train_reference(0, engine)
    again = run.train_reference(3, engine)
    assert torch.equal(later.score, again.score)
    assert torch.equal(later.population, again.population)


def test_the_span_attacks_scores_are_the_same_once_added(attacked):
    run, engine = attacked(model__name="mlp", algorithm__rounds=7)
    whole, without = run.train_reference(1, engine), run.train_reference(1, engine, spans=())
    assert not without.spans
    assert bool(whole.spans["span"].isfinite().any())
    added = run.with_spans(without, 1, engine)
    for name in ("score", "member", "model", "population", "trajectory"):
        assert getattr(added, name).equal(getattr(whole, name)), name
    for name in SPAN_NAMES:
        assert added.spans[name].equal(whole.spans[name]), name


def test_nothing_is_evaluated_and_no_shadow_model_trained_on_the_way(attacked, monkeypatch):
    run, engine = attacked()

    def refuse(*_, **__):
        raise AssertionError("a reference federation was evaluated")

    monkeypatch.setattr(RedTeam, "estimate", refuse)
    monkeypatch.setattr("shoal.simulation.play.round_metrics", refuse)
    monkeypatch.setattr("shoal.attacks.queries.shadow_models.ShadowModels.records", refuse)
    run.train_reference(0, engine)


@pytest.mark.parametrize(("rounds", "member_rounds"), [(1, 5), (6, 2)])
def test_only_records_of_clients_that_trained_lately_are_asked_about(attacked, rounds, member_rounds):
    run, engine = attacked(
        algorithm__name="fedavg",
        algorithm__participation=0.3,
        algorithm__rounds=rounds,
        evaluation__member_rounds=member_rounds,
        red_team__every=0,
    )
    trained = run.state.trained[:, 0]
    lately = trained > max(0, rounds - member_rounds)
    assert 0 < int(lately.sum()) < len(lately)
    assert rounds == 1 or int(((trained > 0) & ~lately).sum()) > 0, "somebody trained long ago"
    assert set(run.records.client.tolist()) == set(torch.nonzero(lately).flatten().tolist())
    assert torch.equal(run.scores(engine).member, torch.arange(2 * len(run.records)) < len(run.records))
    assert any(f"{int((~lately).sum())} of 10 clients did not train in the last rounds" in note for note in run.notes)
    # In a reference federation a record that was trained on is a member of the model, however long ago it was.
    exchanged = run.exchanged(0)
    training = replace(
        run.simulation.on(engine),
        federation=run.records.swap_records(exchanged),
        stream=run.stream("reference federation", 0),
    )
    for state, _ in training.rounds(initial_state(run.simulation, engine).state, rounds):
        last = state
    ever = (last.trained[:, 0] > 0)[run.records.client]
    assert torch.equal(run.train_reference(0, engine).member, torch.cat([~exchanged, exchanged]) & ever)


def test_personal_models_are_scored_each_on_its_clients_records(attacked):
    run, engine = attacked(algorithm__name="ditto", algorithm__base={"name": "ifca"}, red_team__every=0)
    scores = run.scores(engine)
    assert torch.equal(scores.model, torch.arange(10))
    assert scores.population.numel() == 0
    joined = join_scores(scores, [run.train_reference(0, engine)], run.records.client)
    assert joined.population is None


def test_lira_finds_members_that_a_loss_threshold_does_not(attacked):
    run, engine = attacked(
        algorithm__name="ifca",
        algorithm__rounds=15,
        local__epochs=4,
        local__learning_rate=0.2,
        data__test_examples=300,
        red_team__every=0,
        model__hidden=64,
    )
    references = [run.train_reference(number, engine) for number in range(6)]
    matrix = join_scores(run.scores(engine), references, run.records.client)
    assert matrix.references == 6
    # Each record is in half of the federations.
    assert np.array_equal(matrix.reference_member.sum(axis=1), np.full(len(matrix), 3))
    lira, loss = (
        membership_metrics(scores, matrix.member, threshold=0.0).auc for scores in (LiRA().scores(matrix), matrix.score)
    )
    assert lira > loss + 0.05
    assert lira > 0.7


def test_the_population_is_scored_by_the_model_that_the_same_clients_use(attacked):
    run, engine = attacked(algorithm__name="ifca", red_team__every=0)
    target, reference = run.scores(engine), run.train_reference(0, engine)
    matrix = join_scores(target, [reference], run.records.client)
    population = matrix.population
    used = target.model.unique().tolist()
    assert len(population) == len(used) * len(run.population)
    for k in used:
        there = int(reference.model[target.model == k].mode().values)
        rows = population.model == k
        assert np.array_equal(population.score[rows], target.population[k].numpy())
        assert np.array_equal(population.reference[rows, 0], reference.population[there].numpy())


def test_a_run_with_a_property_attack_is_refused(attacked):
    run, engine = attacked()
    nobody = SimpleNamespace(clients=torch.empty(0), start=dict, train=dict)
    with pytest.raises(InputError, match=r"without .property_attack."):
        AttackedRun.from_run(replace(run.simulation, malicious_clients=nobody), run.state, [], engine)


def test_the_population_is_no_larger_than_it_says(attacked, monkeypatch):
    monkeypatch.setattr(reference_federations, "POPULATION", 7)
    run, _ = attacked(algorithm__rounds=1, algorithm__name="fedavg")
    assert len(run.population) == 7


def test_a_stage_runs_on_the_given_engine_unless_it_was_computed_otherwise():
    model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
    with shoal.Engine(model, threads=1, backend="loop") as engine:
        same, other = (shoal.Engine(model, threads=1, backend=backend) for backend in ("loop", "vmap"))
        same.close()
        other.close()
        with (
            matching_engine(None, engine) as unasked,
            matching_engine(same, engine) as alike,
            matching_engine(other, engine) as reopened,
        ):
            assert unasked is engine
            assert alike is engine
            assert (reopened is engine, reopened.backend) == (False, "vmap")
