"""Attacks on a matrix of scores: plain formulas written once more with loops, laws, and known strengths."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from made_up_scores import made_up
from shoal.attacks import (
    RMIA,
    BaVarIA,
    DifficultyCalibration,
    LiRA,
    LossScore,
    OfflineLiRA,
    OfflineRMIA,
    Population,
    ReferenceAttack,
    ReferenceScores,
)
from shoal.attacks.scores.bavaria import fit_prior
from shoal.attacks.scores.in_and_out import in_and_out, pooled_variances
from shoal.attacks.scores.rmia import TIE
from shoal.core.errors import InputError

ATTACKS = [LiRA(), OfflineLiRA(), LiRA(own_variance=4), RMIA(), OfflineRMIA(), BaVarIA(), DifficultyCalibration()]
ATTACKS += [LossScore()]
SMALL = made_up(9, 7, models=2, population=6)
"""Each record has IN and OUT scores."""


@pytest.fixture(params=ATTACKS, ids=repr)
def attack(request) -> ReferenceAttack:
    return request.param


def sides(records: ReferenceScores, i: int) -> tuple[list[float], list[float]]:
    """IN and OUT scores of record i."""
    row, trained = records.reference[i].tolist(), records.reference_member[i].tolist()
    return [s for s, t in zip(row, trained, strict=True) if t], [s for s, t in zip(row, trained, strict=True) if not t]


def variance(scores: list[float]) -> float:
    mean = sum(scores) / len(scores)
    return sum((s - mean) ** 2 for s in scores) / (len(scores) - 1)


def pooled(records: ReferenceScores, side: int) -> float:
    """The variance around each record's own mean, of records with two scores or more."""
    squares = freedom = 0.0
    for i in range(len(records)):
        scores = sides(records, i)[side]
        if len(scores) > 1:
            squares, freedom = squares + variance(scores) * (len(scores) - 1), freedom + len(scores) - 1
    return squares / freedom


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def plain_lira(records: ReferenceScores, *, by_record: bool) -> list[float]:
    scores = []
    for i, x in enumerate(records.score):
        logs = []
        for side, of_side in enumerate(sides(records, i)):
            spread = variance(of_side) if by_record and len(of_side) > 1 else pooled(records, side)
            logs.append(stats.norm.logpdf(x, mean(of_side), math.sqrt(spread)))
        scores.append(logs[0] - logs[1])
    return scores


def plain_rmia(records: ReferenceScores, average, gamma: float) -> list[float]:
    """Fractions of the population, or without it of the other records.

    ``average`` is of the mean IN and OUT probability, the IN one None where there is none.
    """
    scores = []
    for i, x in enumerate(records.score):
        inside, outside = ([sigmoid(s) for s in side] for side in sides(records, i))
        ratio = sigmoid(x) / average(mean(inside), mean(outside))
        hits = count = 0
        if records.population is not None:
            for j, z in enumerate(records.population.score):
                if records.population.model[j] == records.model[i]:
                    all_models = [sigmoid(s) for s in records.population.reference[j]]
                    hits += ratio / (sigmoid(z) / average(None, mean(all_models))) >= gamma
                    count += 1
        else:
            for j, z in enumerate(records.score):
                if j != i and records.model[j] == records.model[i]:
                    out = [sigmoid(s) for s in sides(records, j)[1]]
                    hits += ratio / (sigmoid(z) / average(None, mean(out))) >= gamma
                    count += 1
        scores.append(hits / count + TIE * math.log(ratio) / (1 + abs(math.log(ratio))))
    return scores


def online(inside: float | None, outside: float) -> float:
    return outside if inside is None else (inside + outside) / 2


def offline(inside: float | None, outside: float) -> float:
    return ((1 + 0.33) * outside + (1 - 0.33)) / 2


def plain_bavaria(records: ReferenceScores) -> list[float]:
    """By updating the prior one score at a time, and scipy's Student-t distribution."""
    both = in_and_out(BaVarIA(), records, needs_in=True)
    priors = [fit_prior(side, v) for side, v in zip(both, pooled_variances(BaVarIA(), *both), strict=True)]
    scores = []
    for i, x in enumerate(records.score):
        logs = []
        for of_side, prior in zip(sides(records, i), priors, strict=True):
            m, k, a, b = prior.mean, prior.strength, prior.shape, prior.scale
            for s in of_side:
                m, k, a, b = (k * m + s) / (k + 1), k + 1, a + 0.5, b + k * (s - m) ** 2 / (2 * (k + 1))
            logs.append(stats.t.logpdf(x, 2 * a, m, math.sqrt(b * (k + 1) / (a * k))))
        scores.append(logs[0] - logs[1])
    return scores


PLAIN = {
    "lira": (LiRA(), lambda r: plain_lira(r, by_record=False)),
    "lira, own variances": (LiRA(own_variance=7), lambda r: plain_lira(r, by_record=True)),
    "offline lira": (
        OfflineLiRA(),
        lambda r: [(x - mean(sides(r, i)[1])) / math.sqrt(pooled(r, 1)) for i, x in enumerate(r.score)],
    ),
    "offline lira, own variances": (
        OfflineLiRA(own_variance=7),
        lambda r: [
            (x - mean(out)) / math.sqrt(variance(out) if len(out) > 1 else pooled(r, 1))
            for x, out in ((x, sides(r, i)[1]) for i, x in enumerate(r.score))
        ],
    ),
    # At a gamma of 1, the default, a record is as far above itself as it must be, and would count itself.
    **{
        f"{attack.name}, gamma {gamma}{population}": (
            attack(gamma=gamma),
            partial(plain_rmia, average=mean, gamma=gamma),
        )
        for attack, mean in ((RMIA, online), (OfflineRMIA, offline))
        for gamma in (1.0, 2.0)
        for population in ("", ", no population")
    },
    "bavaria": (BaVarIA(), plain_bavaria),
    "calibration": (DifficultyCalibration(), lambda r: [x - mean(sides(r, i)[1]) for i, x in enumerate(r.score)]),
    "loss": (LossScore(), lambda r: [math.log(sigmoid(x)) for x in r.score]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_scores_are_those_of_the_formulas_with_loops(name):
    attack, plain = PLAIN[name]
    records = replace(SMALL, population=None) if "no population" in name else SMALL
    assert all(all(map(len, sides(records, i))) for i in range(len(records)))
    np.testing.assert_allclose(attack.scores(records), plain(records), rtol=1e-9, atol=1e-9)


def test_pooled_variances_are_of_the_noise_of_each_side_and_not_of_the_records_difficulty():
    """IN scores vary 9 times as much as OUT scores; difficulties, and the few scores of a record, must not count."""
    rng = np.random.default_rng(0)
    trained = rng.random((20000, 4)) < 0.5
    reference = rng.normal(0, 5, 20000)[:, None] + np.where(trained, 3.0, 1.0) * rng.normal(size=(20000, 4))
    records = ReferenceScores(reference[:, 0], trained[:, 0], reference[:, 1:], trained[:, 1:], np.zeros(20000, int))
    both = in_and_out(LiRA(), records, needs_in=True)
    assert pooled_variances(LiRA(), *both) == pytest.approx([9, 1], rel=0.05)


def test_a_side_on_which_no_record_has_two_scores_takes_the_other_s_variance():
    records = replace(SMALL, reference_member=np.tile(np.arange(7) == 2, (9, 1)))
    both = in_and_out(LiRA(), records, needs_in=True)
    assert pooled_variances(LiRA(), *both) == pytest.approx([pooled(records, 1)] * 2)


def test_scores_follow_their_records_and_read_no_order_of_models_no_member_and_no_other_model_s_population(attack):
    records, draw = made_up(60, 8, models=3, population=20), np.random.default_rng(1)
    scores, z, order = attack.scores(records), records.population, draw.permutation(60)
    np.testing.assert_allclose(attack.scores(records.take(order)), scores[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(attack.scores(records.only(draw.permutation(8))), scores, rtol=1e-9, atol=1e-12)
    more = Population(np.append(z.score, 9.0), np.vstack([z.reference, np.full(8, -9.0)]), np.append(z.model, 3))
    order = np.append(draw.permutation(20), 20)
    shuffled = Population(more.score[order], more.reference[order], more.model[order])
    for other in ({"population": shuffled}, {"member": ~records.member}):
        assert attack.scores(replace(records, **other)).tolist() == scores.tolist()
    assert attack.scores(made_up(0, 8)).shape == (0,)


@pytest.mark.parametrize("attack", [one for one in ATTACKS if not isinstance(one, LiRA | BaVarIA)], ids=repr)
def test_one_record_s_score_rises_with_the_attacked_model_s(attack):
    """Not of attacks with two distributions, to which a score far above both may speak for the wider one."""
    records = made_up(40, 8, models=2, population=20)
    before = attack.scores(records)
    for i in range(0, 40, 7):
        score = records.score.copy()
        score[i] += 0.1
        assert attack.scores(replace(records, score=score))[i] > before[i]


@pytest.mark.parametrize("attack", [LiRA(), BaVarIA(), RMIA()], ids=repr)
def test_a_record_on_one_side_only_takes_the_other_from_the_mean_difference(attack):
    """The second record has no IN scores, the third no OUT scores; a copy with scores moved by 1 says the same."""
    reference = np.array([[1.5, 0.5, -0.5, 0.5], [0.1, 0.7, -0.3, 0.0], [1.2, 0.7, 1.1, 0.4]])
    trained = np.array([[True, True, False, False], [False] * 4, [True] * 4])
    records = ReferenceScores(np.zeros(3), np.zeros(3, bool), reference, trained, np.zeros(3, int))
    both = in_and_out(attack, records, needs_in=True)
    assert both[0].mean - both[1].mean == pytest.approx([1.0, 1.0, 1.0])
    assert both[1].mean == pytest.approx([0.0, 0.125, 0.85 - 1])
    assert np.all(np.isfinite(attack.scores(records)))


def test_copied_scores_are_no_evidence_of_the_variance():
    """Records that no model trained on do not make the IN variance theirs."""
    rng = np.random.default_rng(0)
    seen = made_up(50, 6)
    quiet = ReferenceScores(
        np.zeros(50), np.zeros(50, bool), 0.01 * rng.normal(size=(50, 6)), np.zeros((50, 6), bool), np.zeros(50, int)
    )
    names = ("score", "member", "reference", "reference_member", "model")
    joined = ReferenceScores(*(np.concatenate([getattr(seen, name), getattr(quiet, name)]) for name in names))
    of_known, of_joined = (
        pooled_variances(LiRA(), *in_and_out(LiRA(), scores, needs_in=True)) for scores in (seen, joined)
    )
    assert of_joined[0] == pytest.approx(of_known[0])
    assert of_joined[1] < 0.5 * of_known[1]


def test_extreme_scores_stay_finite_and_apart(attack):
    records = made_up(50, 8, population=10)
    far = replace(records, score=np.linspace(-300, 300, 50))
    scores = attack.scores(far)
    assert np.all(np.isfinite(scores))
    # The ratio of probabilities near 1 is that of the reference models.
    assert len(np.unique(scores)) == 50


@pytest.mark.parametrize(
    ("trained", "refused", "words"),
    [(False, (LiRA, BaVarIA, RMIA), "trained on"), (True, tuple({*map(type, ATTACKS)} - {LossScore}), "did not train")],
    ids=["offline attacks alone", "the loss alone"],
)
def test_a_matrix_of_one_side_is_for_attacks_that_need_no_other(attack, trained, refused, words):
    records = made_up(60, 8)
    one_side = replace(records, reference_member=np.full_like(records.reference_member, trained))
    if isinstance(attack, refused):
        with pytest.raises(InputError, match=rf"'{attack.name}' needs a record that a reference model {words}"):
            attack.scores(one_side)
    else:
        assert np.all(np.isfinite(attack.scores(one_side)))


def test_too_few_reference_models_are_refused_and_just_enough_are_not(attack):
    assert np.all(np.isfinite(attack.scores(made_up(200, attack.least))))
    if attack.least:
        with pytest.raises(InputError, match=rf"at least {attack.least} reference models .got {attack.least - 1}.$"):
            attack.scores(made_up(200, attack.least - 1))


def test_scores_that_do_not_vary_tell_no_variance():
    records = made_up(20, 8)
    constant = replace(records, reference=np.ones_like(records.reference))
    for attack in (LiRA(), OfflineLiRA(), BaVarIA()):
        with pytest.raises(InputError, match="IN scores or two different OUT scores"):
            attack.scores(constant)


def test_lira_evidence_is_finite_for_a_record_with_equal_scores():
    records = made_up(20, 64)
    reference = records.reference.copy()
    reference[0] = records.reference_member[0]
    score = records.score.copy()
    score[0] = 1.0
    scores = LiRA().scores(replace(records, reference=reference, score=score))
    assert np.isfinite(scores[0])
    assert scores[0] > 0


def test_a_record_alone_with_its_model_is_no_evidence_either_way():
    records = made_up(1, 8, seed=1)
    assert RMIA().scores(records)[0] == pytest.approx(0.5, abs=TIE)


def aucs(records: ReferenceScores) -> dict[str, float]:
    attacks = (LiRA(), BaVarIA(), OfflineLiRA(), RMIA(), DifficultyCalibration(), LossScore())
    return {attack.name: float(roc_auc_score(records.member, attack.scores(records))) for attack in attacks}


def test_calibration_is_best_and_lira_near_it_for_records_of_equal_shift():
    """Difficulty N(0, 2), shift 1, noise 1: score - difficulty is all there is to know, and the AUC Phi(1 / sqrt 2)."""
    auc = aucs(made_up(3000, 64))
    best = stats.norm.cdf(1 / math.sqrt(2))
    assert auc["calibration"] == pytest.approx(best, abs=0.02)
    assert all(auc[name] == pytest.approx(auc["calibration"], abs=0.02) for name in ("lira", "bavaria", "rmia"))
    assert min(auc["lira"], auc["bavaria"], auc["rmia"], auc["calibration"]) > auc["loss"] + 0.05


def test_lira_beats_calibration_and_calibration_the_loss_for_records_of_unequal_shift():
    auc = aucs(made_up(3000, 64, uneven=True))
    assert auc["lira"] > auc["calibration"] + 0.02
    assert auc["bavaria"] > auc["calibration"] + 0.02
    assert auc["calibration"] > auc["loss"] + 0.05


def test_with_few_reference_models_the_bayesian_variances_help():
    auc = aucs(made_up(4000, 4))
    assert auc["bavaria"] > auc["lira"] + 0.01
