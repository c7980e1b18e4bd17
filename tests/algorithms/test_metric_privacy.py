"""Noise in proportion to how far the clients of a round are apart, against the formula."""

import math

import pytest
import torch
from torch import nn

from shoal.algorithms import (
    CFL,
    IFCA,
    MRMTL,
    Ditto,
    EarlyStopping,
    FedAvg,
    FedOpt,
    FedRep,
    GroupPrivacy,
    LocalOnly,
    MetricPrivacy,
    Scaffold,
)  # fmt: skip
from shoal.algorithms.private.metric_privacy import largest_distance
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training
from shoal.models import Model


def test_the_largest_distance_is_of_all_pairs():
    models = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    assert largest_distance(models) == pytest.approx(float(torch.pdist(models.double()).max()), rel=1e-9)
    # Far from the origin, where squares of float32 would be wrong.
    assert largest_distance(models + 1e3) == pytest.approx(float(torch.pdist(models + 1e3).max()), rel=1e-3)
    assert (
        largest_distance(models[:1]) == largest_distance(models[:1].expand(3, -1)) == largest_distance(models[:0]) == 0
    )


@pytest.mark.parametrize(
    "base",
    [
        FedAvg(),
        IFCA(2),
        GroupPrivacy(2),
        Scaffold(),
        Ditto(IFCA(2), 0.5),
        MRMTL(0.5),
        FedOpt(IFCA(2)),
        EarlyStopping(IFCA(2), 2),
    ],
    ids=repr,
)
def test_without_noise_it_is_the_base_bit_for_bit(play, base):
    (states, _), (plain, _) = play(MetricPrivacy(base, 0.0)), play(base)
    assert torch.equal(states[-1].models, plain[-1].models)
    assert all(torch.equal(own, states[-1].clients[name]) for name, own in plain[-1].clients.items())
    assert all(torch.equal(own, states[-1].server[name]) for name, own in plain[-1].server.items())


class Halves(IFCA):
    """IFCA in which every other client chooses the first model."""

    def plan(self, state, cohort):
        return self.plan_of(cohort.clients % 2, None, state, cohort)


def test_noise_is_as_long_as_the_formula_says(play):
    """Of one round, over the parameters: the standard deviation z * w_k * d_k."""
    z, base = 0.7, Halves(2, weighting="examples")
    (first, plain), (report,) = play(base, rounds=1, training={"record_every": 1})
    updates, (training,) = report.updates, report.plan.trainings
    noisy = play(MetricPrivacy(base, z), rounds=1)[0][-1]
    assert torch.equal(noisy.assignment, plain.assignment)
    for k in range(2):
        mine = updates.assignment == k
        expected = z * float(training.weights[k].max()) * float(torch.pdist(updates.updates[mine].double()).max())
        noise = (noisy.models - plain.models)[k].double()
        # The standard deviation of a standard deviation over P draws is 1 / sqrt(2 P).
        assert float(noise.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * noise.numel()))
        assert abs(float(noise.mean())) < 5 * expected / math.sqrt(noise.numel())
    assert torch.equal(first.models, play(base, rounds=0)[0][0].models)


def test_in_a_round_in_which_nothing_is_sent_there_is_no_noise(play):
    (_, one, stopped), _ = play(MetricPrivacy(EarlyStopping(IFCA(2), 1)), rounds=2)
    assert torch.equal(one.models, stopped.models)


def test_personal_tensors_do_not_add_to_metric_privacys_noise(play):
    """FedRep's heads differ by far more than the bodies that are sent, to which alone the formula applies."""
    z, base, local = 0.7, FedRep(), LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
    noisy = play(MetricPrivacy(base, z), rounds=1, local=local)[0][-1]
    (_, first), (report,) = play(base, rounds=1, local=local, training={"record_every": 1})
    (weights,) = [each.weights for each in report.plan.trainings if each.weights is not None]
    expected = z * float(weights.max()) * float(torch.pdist(report.updates.updates.double()).max())
    noise = (noisy.models - first.models)[0].double()
    assert float(noise.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * noise.numel()))


class Alone(IFCA):
    """IFCA in which the first client chooses the second model and nobody else does."""

    def plan(self, state, cohort):
        return self.plan_of((cohort.clients == 0).long(), None, state, cohort)


class Nobody(IFCA):
    """IFCA in which everybody chooses the first of two models."""

    def plan(self, state, cohort):
        return self.plan_of(torch.zeros(len(cohort), dtype=torch.int64), None, state, cohort)


@pytest.mark.parametrize("base", [Alone(), Nobody()], ids=["alone", "nobody"])
def test_a_lone_client_is_not_hidden_and_a_model_of_nobody_stays(play, base):
    noisy, plain = (play(each, rounds=2)[0][-1] for each in (MetricPrivacy(base), base))
    assert not torch.equal(noisy.models[0], plain.models[0])
    if isinstance(base, Nobody):
        assert torch.equal(noisy.models[1], plain.models[1])
    else:
        # In the first round, before its neighbours' noise could reach it.
        one, other = (play(each, rounds=1)[0][-1] for each in (MetricPrivacy(base), base))
        assert torch.equal(one.models[1], other.models[1])
        assert not torch.equal(one.models[1], play(base, rounds=0)[0][-1].models[1])


def test_metric_privacy_refuses_batch_norm_changing_clusters_and_clients_that_send_nothing(mlp, build, play):
    with pytest.raises(InputError, match=r"^metric privacy needs clients that send models; those of LocalOnly do not$"):
        play(MetricPrivacy(LocalOnly()), rounds=1)
    with pytest.raises(InputError, match=r"^MetricPrivacy's 'base' must keep its number of models, which CFL changes"):
        MetricPrivacy(CFL()).check(LocalSGD(), 0)
    normed = Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    with (
        Engine(normed) as engine,
        pytest.raises(InputError, match=r"without batch norm; 8 of this one's numbers are not$"),
    ):
        Training(build(), MetricPrivacy(), LocalSGD(), engine, Stream(5)).start()
    with pytest.raises(InputError, match=r"^'noise_multiplier' must be at least 0; got -1$"):
        MetricPrivacy(noise_multiplier=-1)
