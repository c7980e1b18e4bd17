"""Server-side k-means over what clients send, with and without noise."""

import pytest
import torch
from sklearn.cluster import KMeans

from shoal.algorithms import IFCA, GroupPrivacy
from shoal.algorithms.clusters.group_privacy import k_means
from shoal.core.errors import InputError
from shoal.defenses import LaplaceNoise


def test_k_means_is_scikit_learn_s():
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(60, 5, generator=draw) + 2 * torch.randint(0, 3, (60, 1), generator=draw)
    start = points[:3].clone()
    centroids, cluster = k_means(points, start, 300)
    reference = KMeans(3, init=start.double().numpy(), n_init=1, tol=0, max_iter=300).fit(points.double().numpy())
    torch.testing.assert_close(centroids.double(), torch.tensor(reference.cluster_centers_), rtol=1e-5, atol=1e-6)
    assert cluster.tolist() == reference.labels_.tolist()
    assert len(set(cluster.tolist())) == 3
    one, first = k_means(points, start, 1)
    assert torch.equal(first, torch.cdist(points, start).argmin(dim=1))
    assert not torch.allclose(one, centroids)


def test_without_noise_and_with_models_far_apart_it_is_ifca(play):
    (one, reports), (other, _) = play(GroupPrivacy(2)), play(IFCA(2))
    assert len(reports[0].assignment.unique()) == 2
    torch.testing.assert_close(one[-1].models, other[-1].models, rtol=1e-5, atol=1e-6)
    assert torch.equal(one[-1].assignment, other[-1].assignment)
    assert torch.equal(one[-1].trained, other[-1].trained)


def test_one_cluster_is_the_mean_of_everybody(play):
    torch.testing.assert_close(play(GroupPrivacy(1))[0][-1].models, play(IFCA(1))[0][-1].models, rtol=1e-5, atol=1e-6)


class Distant:
    """Sends the second model whatever was trained."""

    def __init__(self, model):
        self.model = model

    def filter(self, starts, ends, seeds):
        return self.model.expand_as(ends)


def test_the_server_follows_what_it_received_not_what_clients_chose(play):
    first = play(GroupPrivacy(2), rounds=0)[0][0]
    states, (report,) = play(GroupPrivacy(2), rounds=1, training={"client_filter": Distant(first.models[1])})
    assert len(report.assignment.unique()) == 2
    torch.testing.assert_close(states[-1].models, first.models)
    assert states[-1].trained.tolist() == [[0, 1]] * 6
    assert torch.equal(states[-1].assignment, report.assignment)


def test_who_trained_a_model_is_remembered_over_rounds(play):
    states, reports = play(GroupPrivacy(2), rounds=4, training={"participation": 0.5})
    expected = torch.zeros(6, 2, dtype=torch.int64)
    for number, report in enumerate(reports, start=1):
        expected[report.cohort, report.assignment] = number
    assert torch.equal(states[-1].trained, expected)


@pytest.mark.parametrize(("nu", "survives"), [(0.5, True), (100.0, False)])
def test_noise_longer_than_the_root_of_the_clients_hides_the_groups(nu, survives):
    """Two groups of 16 clients with opposite updates, k-means from slightly different models; five times.

    The models differ along the updates' own direction, so an update falls on its side of them with probability
    Phi(sqrt(2000) / nu) even then: 0.67 at nu = 100.
    """
    draw = torch.Generator().manual_seed(4)
    direction = torch.randn(1, 2000, generator=draw)
    group = torch.arange(32) % 2
    updates = direction * (2 * group[:, None] - 1)
    found = []
    for clients in torch.arange(5 * 32).split(32):
        sent = LaplaceNoise(nu).filter(torch.zeros_like(updates), updates, clients)
        _, cluster = k_means(sent, torch.cat([-direction, direction]) / 100, 50)
        agree = float((cluster == group).double().mean())
        found.append(max(agree, 1 - agree))
    assert (sum(found) / 5 > 0.9) == survives


def test_clusters_and_iterations_are_numbers_from_1():
    with pytest.raises(InputError, match=r"^'clusters' must be at least 1; got 0$"):
        GroupPrivacy(0)
    with pytest.raises(InputError, match=r"^'iterations' must be at least 1; got 0$"):
        GroupPrivacy(iterations=0)
