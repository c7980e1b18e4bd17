"""The stack of attacks: better than two independent scores, at chance where nothing is leaked, blind to members;
levels of scores on their own records; and the loss trajectory, which the same regression reads.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, t
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from attacked_run import attacked_run
from made_up_scores import made_up, made_up_pairs
from shoal.attacks import DifficultyCalibration, LiRA, LossScore, Stack
from shoal.attacks.scores.score_levels import record_levels
from shoal.attacks.scores.trajectory import LossTrajectory
from shoal.audit import leave_one_out_scores
from shoal.audit.attacked_records import REFERENCE_ATTACKS, attack_records
from shoal.audit.record_table import RecordTable, measure, strongest
from shoal.config.build import build
from shoal.core.errors import InputError
from shoal.engine import Engine
from shoal.metrics import roc_auc
from shoal.replay.attack_inputs import records_of_run
from shoal.replay.reference_store import reference_scores, view_scores
from shoal.replay.span_scores import JOINT_NAMES


def two_scores(shift: float = 1.0, records: int = 600, references: int = 8, seed: int = 0):
    """Two attacks whose errors are independent: (M, 2) and (M, R, 2), with members (M,) and (M, R)."""
    draw = np.random.default_rng(seed)
    member, trained = np.arange(records) < records // 2, draw.random((records, references)) < 0.5
    attacked = draw.normal(shift * member[:, None], 1.0, (records, 2))
    return attacked, draw.normal(shift * trained[:, :, None], 1.0, (records, references, 2)), member, trained


@pytest.mark.parametrize("seed", range(3))
def test_two_independent_scores_together_are_better_than_either(seed):
    attacked, references, member, trained = two_scores(seed=seed)
    score, left_out = Stack().scores(attacked, references, trained)
    best = max(roc_auc(part, member) for part in attacked.T)
    # Of two equally good normal scores: Phi(sqrt(2) d / sqrt(2)) instead of Phi(d / sqrt(2)).
    assert roc_auc(score, member) > best + 0.03
    assert roc_auc(left_out.ravel(), trained.ravel()) == pytest.approx(norm.cdf(1.0), abs=0.015)


def test_the_regression_is_that_of_scikit_learn_on_all_references():
    attacked, references, _, trained = two_scores(records=100)
    score, left_out = Stack(inverse_penalty=0.2).scores(attacked, references, trained)

    def expected(models, scored):
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.2, class_weight="balanced"))
        return pipeline.fit(references[:, models].reshape(-1, 2), trained[:, models].ravel()).decision_function(scored)

    np.testing.assert_allclose(score, expected(range(8), attacked), atol=1e-5)
    for r in (2, 3):
        np.testing.assert_allclose(left_out[:, r], expected([0, 1, 4, 5, 6, 7], references[:, r]), atol=1e-5)


def test_a_record_that_an_attack_cannot_be_asked_of_is_judged_by_the_others():
    attacked, references, member, trained = two_scores()
    attacked[::3, 0], references[::3, :, 0] = np.nan, np.nan
    score, left_out = Stack().scores(attacked, references, trained)
    assert np.isfinite(score).all()
    assert np.isfinite(left_out).all()
    assert roc_auc(score[::3], member[::3]) == pytest.approx(roc_auc(attacked[::3, 1], member[::3]))


def test_the_stack_of_an_audit_reads_no_member_of_the_attacked_run():
    records = made_up_pairs(150, 8, effect=np.full(300, 2.0))
    swapped = replace(records, scores=replace(records.scores, member=~records.scores.member))
    one, other = (attack_records(each).attacks["stack"] for each in (records, swapped))
    assert np.array_equal(one.score, other.score)
    assert np.array_equal(one.threshold, other.threshold)
    assert measure(one).auc == pytest.approx(1 - measure(other).auc)
    assert measure(one).auc > 0.7


def test_where_nothing_is_leaked_stacks_are_at_chance_and_decide_nothing():
    inside = 0
    for seed in range(12):
        attacked = attack_records(made_up_pairs(200, 8, seed=seed))
        metrics = measure(attacked.attacks["stack"])
        inside += metrics.auc_low <= 0.5 <= metrics.auc_high
        assert strongest({name: measure(table) for name, table in attacked.attacks.items()})[0] != "stack"
    # 94 of 100 seeds.
    assert inside >= 10


@pytest.mark.parametrize("references", [4, 6, 8])
def test_where_nothing_is_leaked_no_attack_tells_members_of_references_that_come_in_opposite_pairs(references):
    scores = made_up_pairs(600, references).scores
    for attack in REFERENCE_ATTACKS:
        left_out = leave_one_out_scores(attack, scores)
        if left_out is not None:
            auc = roc_auc(left_out.ravel(), scores.reference_member.ravel())
            assert auc == pytest.approx(0.5, abs=0.03), (attack.name, auc)
        else:
            assert references - 2 < attack.least, attack.name


def test_of_references_that_share_records_all_others_are_left():
    scores = made_up(300, 4)
    left_out = leave_one_out_scores(LiRA(), scores)
    assert left_out is not None
    np.testing.assert_allclose(left_out[:, 2], LiRA().scores(scores.leave_one_out(2)))


def test_each_view_has_a_stack_of_what_it_can_do_where_it_has_an_attack_of_its_own():
    records = made_up_pairs(200, 8, effect=np.full(400, 1.0))
    draw, trained = np.random.default_rng(1), records.scores.reference_member
    exact = RecordTable.from_columns(
        draw.normal(3.0 * records.scores.member), view="server", reference=draw.normal(3.0 * trained)
    )
    unknown = RecordTable.from_columns(draw.normal(size=400), view="client")
    attacked = attack_records(replace(records, further={"exact": exact, "unknown": unknown}))
    assert "stack-client" not in attacked.attacks, "its only score on references is not known"
    assert set(attacked.attacks["stack-server"].view) == {"server"}
    aucs = {name: measure(attacked.attacks[name]).auc for name in ("stack", "exact", "stack-server")}
    assert aucs["stack"] < aucs["exact"] <= aucs["stack-server"] + 0.005
    assert attacked.order[0] not in {"stack", "stack-server"}, "a stack is not chosen beforehand"


def test_with_few_references_or_one_attack_there_is_no_stack_and_a_reason():
    records = made_up_pairs(60, 6)
    assert attack_records(records).omitted["stack"] == "needs 8 reference models; there are 6"
    alone = attack_records(made_up_pairs(60, 8), [LossScore()])
    assert alone.omitted["stack"] == "needs two attacks whose scores on reference models are known"


def varied(seed: int = 0, shift: float = 0.0, references: int = 16):
    """Scores of records whose standard deviations differ, without and with ``shift`` of these where trained on."""
    draw = np.random.default_rng(seed)
    deviation, trained = np.exp(draw.normal(0, 0.8, (1200, 1))), draw.random((1200, references)) < 0.5
    member = np.arange(1200) < 600
    scores = draw.normal(0, 1, (1200, 1)) + deviation * (
        draw.normal(size=(1200, references + 1)) + shift * np.column_stack([member, trained])
    )
    return scores[:, 0], scores[:, 1:], trained, member, deviation[:, 0]


def test_levels_are_false_positive_rates_where_nothing_is_leaked():
    score, reference, trained, *_ = varied()
    rates = np.exp(-record_levels(score, reference, trained))
    for rate in (0.5, 0.2, 0.05):
        assert np.mean(rates < rate) == pytest.approx(rate, abs=3.5 * np.sqrt(rate / 1200))


def test_a_threshold_for_each_record_finds_more_where_records_differ_in_spread():
    score, reference, trained, member, _ = varied(shift=2.0, references=32)
    records = attack_records_of(score, reference, trained, member)
    metrics = measure(records.attacks["calibration"])
    assert metrics.tpr_at_1_percent_fpr_per_record > metrics.tpr_at_1_percent_fpr + 0.05
    assert metrics.tpr_at_1_percent_fpr_per_record_low < metrics.tpr_at_1_percent_fpr_per_record
    assert metrics.tpr_at_1_percent_fpr_per_record < metrics.tpr_at_1_percent_fpr_per_record_high


def attack_records_of(score, reference, trained, member):
    """The attacks on these scores."""
    records = made_up_pairs(len(score) // 2, reference.shape[1], groups=1)
    matrix = replace(records.scores, score=score, reference=reference, reference_member=trained, member=member)
    return attack_records(replace(records, scores=matrix, pair=None), [DifficultyCalibration()])


def test_a_level_is_the_upper_tail_of_student_s_t():
    score, reference, trained, *_ = varied(references=8)
    ordered = np.sort(reference[~trained])

    def normal(values):
        below, upto = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
        return norm.ppf(((below + upto) / 2 + 0.5) / (len(ordered) + 1))

    levels = record_levels(score, reference, trained)
    for record in np.flatnonzero((~trained).sum(axis=1) > 1)[:20]:
        outside = normal(reference[record][~trained[record]])
        width = outside.std(ddof=1) * np.sqrt(1 + 1 / len(outside))
        tail = t.sf((normal(score)[record] - outside.mean()) / width, len(outside) - 1)
        assert levels[record] == pytest.approx(-np.log(tail))


def test_without_references_enough_or_scores_that_vary_there_is_no_rate_for_each_record():
    few = attack_records(made_up_pairs(200, 7)).attacks["calibration"]
    assert np.isnan(measure(few).tpr_at_1_percent_fpr_per_record)
    with pytest.raises(InputError, match="IN scores or two different OUT scores"):
        record_levels(np.zeros(9), np.zeros((9, 6)), np.arange(6) % 2 == np.zeros((9, 1)))


def test_the_views_of_a_run_are_stacked_with_span_and_trajectory(toy_config):
    _, simulation = build(toy_config(algorithm__name="ifca", model={"name": "mlp", "hidden": 16}))
    with Engine(simulation.setup.model, threads=1) as engine:
        run = attacked_run(simulation, engine)
        target = run.scores(engine)
        references = reference_scores(run, target, 8, engine, folder=None)
        scores, _ = view_scores(run, target, references, engine)
        for name, found in scores.items():
            if name in JOINT_NAMES:
                assert found.reference is None, "its list is of one federation"
                continue
            assert found.reference is not None, name
            assert found.reference.shape == (len(target.score), 8)
        records = records_of_run(run, target, references, engine)
        attacked = attack_records(replace(records, further={**records.further, **scores}))
    assert attacked.views["stack-client"] == "client"
    assert attacked.views["stack-server"] == "server"
    server = measure(attacked.attacks["stack-server"])
    assert server.auc > 0.95, "25 examples of a client are recognised by its updates"


def paths(seed: int, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Losses over five rounds: all records end at a loss of about 0.2; members get there sooner."""
    draw = np.random.default_rng(seed)
    member = draw.random(count) < 0.4
    rate = np.where(member, 0.7, 0.35)[:, None]
    losses = 0.2 + 2 * np.exp(-rate * np.arange(1, 6)) * (np.arange(5) < 4) + draw.normal(0, 0.25, (count, 5))
    return losses, member


def test_the_trajectory_is_better_than_the_last_loss_where_the_path_matters():
    fitted = LossTrajectory().fit(*paths(0))
    losses, member = paths(1)
    by_path, by_last = roc_auc_score(member, fitted.score(losses)), roc_auc_score(member, -losses[:, -1])
    assert by_last < 0.6
    assert by_path > 0.9


def test_the_regression_of_trajectories_is_that_of_scikit_learn():
    losses, member = paths(2)
    expected = make_pipeline(StandardScaler(), LogisticRegression(C=0.3, class_weight="balanced")).fit(losses, member)
    fitted, fresh = LossTrajectory(inverse_penalty=0.3).fit(losses, member), paths(3)[0]
    np.testing.assert_allclose(fitted.score(fresh), expected.decision_function(fresh), atol=1e-6)
    assert np.array_equal(fitted.score(fresh) > fitted.threshold, expected.predict(fresh))


def test_a_round_in_which_all_losses_are_equal_says_nothing():
    losses, member = paths(4)
    more = np.concatenate([np.full((len(losses), 1), 0.7), losses], axis=1)
    fitted, wider = LossTrajectory().fit(losses, member), LossTrajectory().fit(more, member)
    np.testing.assert_allclose(wider.score(more), fitted.score(losses), atol=1e-6)


def test_records_of_one_kind_are_refused():
    with pytest.raises(InputError, match="members and non-members"):
        LossTrajectory().fit(np.zeros((4, 2)), np.ones(4, dtype=bool))
