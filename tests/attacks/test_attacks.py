"""Attacks on made-up records, whose right answers are known."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from shoal.attacks import Gap, LossThreshold, Query, Records, ShadowModelAttack, needs_classes
from shoal.attacks.membership_attack import losses
from shoal.core.randomness import Stream
from shoal.metrics import balanced_accuracy, gap_accuracy, membership_metrics
from shoal.models import cross_entropy, squared_error
from shoal.testing import check_attack

SHOKRIS = [
    *(ShadowModelAttack("logistic", each, ordered) for each in (True, False) for ordered in (True, False)),
    # Features do not know which classifier they are for: of the others each value once.
    *(ShadowModelAttack(kind, each, not each) for kind in ("mlp", "random-forest") for each in (True, False)),
]


def records(count: int, member_margin: float, seed: int) -> Records:
    """Outputs for 4 classes that favour the true class: by about 1 for others, by ``member_margin`` for members."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    member = torch.arange(count) % 2 == 0
    outputs = torch.randn(count, 4, generator=generator)
    outputs[torch.arange(count), labels] += torch.where(member, member_margin, 1.0)
    return Records(outputs, labels, member, torch.arange(count) % 3, torch.arange(count))


def query(seen: Records) -> Query:
    return Query(seen.outputs, seen.labels)


@pytest.fixture(scope="module", params=[*SHOKRIS, LossThreshold(), Gap()], ids=repr)
def attack(request):
    return request.param


@pytest.fixture(scope="module")
def fitted(attack):
    return attack.fit(records(300, 3.0, 0), Stream(4))


REFERENCES = {
    "logistic": lambda seed: LogisticRegression(max_iter=200),
    "mlp": lambda seed: MLPClassifier((64,), max_iter=100, early_stopping=True, random_state=seed),
    "random-forest": lambda seed: RandomForestClassifier(100, min_samples_leaf=5, random_state=seed),
}


@pytest.mark.parametrize("classifier", list(REFERENCES))
def test_shadow_classifiers_are_scikit_learn_s_on_standardized_posteriors(classifier):
    seen, attack = records(300, 6.0, 0), ShadowModelAttack(classifier, per_class=False)
    found = attack.fit(seen, Stream(0)).score(query(seen))
    features = np.hstack([torch.softmax(seen.outputs.double(), dim=1).numpy(), np.eye(4)[seen.labels.numpy()]])
    reference = make_pipeline(StandardScaler(), REFERENCES[classifier](Stream(0)("all").key() % 2**31))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        reference.fit(features, seen.member.numpy())
    np.testing.assert_allclose(found, reference.predict_proba(features)[:, 1], atol=1e-9)


@pytest.mark.parametrize("member_margin", [6.0, 1.0], ids=["fitted better", "nothing"])
def test_finds_members_that_are_fitted_better_and_nothing_where_there_is_nothing(attack, member_margin):
    fitted, seen = attack.fit(records(1200, member_margin, 0), Stream(0)), records(2000, member_margin, 1)
    metrics = membership_metrics(fitted.score(query(seen)), seen.member.numpy(), threshold=fitted.threshold)
    # A linear classifier for all classes cannot know which posterior is the true class's, unless sorted.
    blind = attack == ShadowModelAttack("logistic", per_class=False, sorted_posteriors=False)
    if member_margin == 1.0:
        assert abs(metrics.auc - 0.5) < 0.05
        assert abs(metrics.accuracy - 0.5) < 0.05
    else:
        assert metrics.auc > (0.45 if blind else 0.7)
        assert blind or metrics.accuracy > 0.65


def test_every_attack_keeps_the_laws(attack):
    check_attack(attack)
    assert hash(attack) == hash(replace(attack))


@pytest.mark.parametrize("per_class", [True, False])
def test_a_class_never_seen_is_called_no_member(per_class):
    fitting = records(300, 3.0, 0)
    fitted = ShadowModelAttack(per_class=per_class).fit(fitting.where(fitting.labels != 2), Stream(0))
    seen = records(100, 3.0, 1)
    scores = fitted.score(query(seen))[seen.labels.numpy() == 2]
    if per_class:
        assert np.array_equal(scores, np.full(len(scores), 0.5))
    assert not (scores[scores == 0.5] > fitted.threshold).any()


def test_sorted_posteriors_forget_which_class_they_are_of():
    seen = records(60, 3.0, 1)
    fitted = ShadowModelAttack("logistic", per_class=False, sorted_posteriors=True).fit(records(300, 3.0, 0), Stream(0))
    shuffled = seen.outputs[:, [2, 0, 3, 1]]
    np.testing.assert_allclose(fitted.score(Query(shuffled, seen.labels)), fitted.score(query(seen)), rtol=1e-6)


def test_the_gap_attack_is_half_plus_half_the_gap():
    seen = records(400, 4.0, 2)
    right = (seen.outputs.argmax(1) == seen.labels).numpy()
    member = seen.member.numpy()
    fitted = Gap().fit(Records.empty(), Stream(0))
    called = fitted.score(query(seen)) > fitted.threshold
    assert balanced_accuracy(called, member) == pytest.approx(gap_accuracy(right[member].mean(), right[~member].mean()))


def test_losses_survive_certainty():
    certain = losses(torch.tensor([[1000.0, -1000.0]]), torch.tensor([1]))
    assert np.isfinite(certain).all()
    assert certain[0] > 100


# --- the model's own loss ----------------------------------------------------------------------------------------


def regression_records(loss=squared_error) -> Records:
    """Targets of two numbers, which members' outputs come nearer to."""
    draw = torch.Generator().manual_seed(5)
    targets, member = torch.randn(60, 2, generator=draw), torch.arange(60) % 2 == 0
    noise = torch.randn(60, 2, generator=draw) * torch.where(member, 0.1, 1.0)[:, None]
    return Records(targets + noise, targets, member, torch.arange(60) % 3, torch.arange(60), loss=loss)


def test_the_loss_threshold_is_the_members_mean_of_the_loss_that_the_models_were_trained_with():
    classified, seen = records(200, 3.0, 0), regression_records()
    entropy = -torch.log_softmax(classified.outputs.double(), 1)[torch.arange(200), classified.labels].numpy()
    errors = ((seen.outputs - seen.labels) ** 2).mean(dim=1).double().numpy()
    for of, by_hand, loss in ((classified, entropy, cross_entropy), (seen, errors, squared_error)):
        fitted = LossThreshold().fit(of, Stream(0))
        assert fitted.threshold == pytest.approx(-by_hand[of.member.numpy()].mean())
        np.testing.assert_allclose(fitted.score(Query(of.outputs, of.labels, loss=loss)), -by_hand, rtol=1e-6)


def test_only_the_loss_needs_no_classes():
    assert [needs_classes(attack) for attack in (LossThreshold(), Gap(), ShadowModelAttack())] == [False, True, True]


def test_queries_of_records_have_their_loss():
    seen = regression_records()
    assert seen.query(0).loss is seen.without(1).query(1).loss is squared_error
    assert Records.concatenate([seen, seen], None).loss is squared_error
    assert Query.offline(seen.outputs, seen.labels, None, squared_error).loss is squared_error


def test_a_loss_of_one_s_own_gets_what_it_gets_in_training():
    outputs, labels = torch.zeros(2, 3), torch.tensor([0, 2])
    weight = torch.tensor([1.0, 2.0, 3.0])

    def weighted(outputs, labels):
        assert outputs.dtype == torch.float32
        return torch.nn.functional.cross_entropy(outputs, labels, weight=weight, reduction="none")

    np.testing.assert_allclose(losses(outputs, labels, weighted), losses(outputs, labels) * [1, 3], rtol=1e-6)
    assert losses(outputs, labels, weighted).dtype == losses(outputs, labels, cross_entropy).dtype == np.float64
