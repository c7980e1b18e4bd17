"""Membership of clients: told where a client is alone in its model, linked by known cohorts."""

import numpy as np
import torch

from experiment_scripts import experiment_script
from shoal.algorithms import FedAvg
from shoal.attacks import Candidates, ModelSpan, client_scores
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, Training
from shoal.metrics import roc_auc


def test_ranks_know_neither_the_scale_of_scores_nor_the_mix_of_labels():
    draw = np.random.default_rng(0)
    client, label = np.repeat(np.arange(20), 10), draw.integers(0, 3, 200)
    score = draw.normal(size=200)
    _, ranks = client_scores(score, client, label)
    # What a label adds to all its records says nothing of a client, and neither does a change of the scale.
    np.testing.assert_array_equal(client_scores(np.exp(score) + 100.0 * label, client, label)[1], ranks)
    assert not np.array_equal(client_scores(np.exp(score) + 100.0 * label, client)[1], ranks)
    # The mean over all records is a half, whatever they are.
    assert np.isclose(ranks.mean(), 0.5)


def test_records_with_equal_scores_and_those_not_asked_say_nothing():
    clients, scores = client_scores([1.0, 1.0, np.nan, 1.0, np.nan], [4, 0, 0, 4, 9])
    assert clients.tolist() == [0, 4]
    np.testing.assert_array_equal(scores, 0.5)


def test_the_span_of_one_move_tells_a_client_alone_for_certain_and_among_others_what_took_part(mlp, build):
    federation = build()
    clients, count = federation.clients, len(federation)
    x, owner = clients.x[clients.indices], clients.owners().numpy()
    with Engine(mlp, threads=1) as engine:
        for inside in ([0], [3], [1, 4]):
            training = Training(federation.take(torch.tensor(inside)), FedAvg(), LocalSGD(epochs=1), engine, Stream(1))
            moved = [training.start().models, training.round(training.start())[0].models]
            ranks = client_scores(ModelSpan().score(moved, Candidates(x), engine).score[0], owner)[1]
            assert roc_auc(ranks, np.isin(np.arange(count), inside)) == 1.0


def test_known_cohorts_link_a_candidate_to_the_client_that_it_is():
    cohort_coefficients = experiment_script("attacks/client_membership").cohort_coefficients
    draw = np.random.default_rng(3)
    took_part = draw.random((60, 12)) < 0.5
    # Sums hide: the evidence of one round is weak, and so noisy that no round tells.
    evidence = 0.5 + 0.1 * took_part + 0.1 * draw.normal(size=(60, 12))
    linked = cohort_coefficients(evidence, took_part)
    alone = np.mean([roc_auc(evidence[t], took_part[t]) for t in range(60)])
    assert alone < 0.8
    assert roc_auc(linked.ravel(), np.eye(12, dtype=bool).ravel()) > 0.99
    # Whose records are exchanged is found as the other.
    exchanged = cohort_coefficients(evidence[:, ::-1], took_part)
    np.testing.assert_allclose(exchanged, linked[:, ::-1], atol=1e-12)
