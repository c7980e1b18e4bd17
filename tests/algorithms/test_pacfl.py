"""PACFL: angles against scipy's, groups by the span of their data, and FedAvg within them."""

import pytest
import torch
from scipy.linalg import subspace_angles

from relabelled import TWO, ari, relabelled, trained
from shoal.algorithms import PACFL, FedAvg
from shoal.algorithms.clusters.pacfl import basis, principal_angles
from shoal.data import Federation


def bases(count: int = 6) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [basis(torch.randn(20, 7, generator=draw), 3) for _ in range(count)]


def test_angles_are_those_of_scipy():
    for one, other in zip(bases(), bases()[1:], strict=False):
        expected = torch.tensor(subspace_angles(one.numpy(), other.numpy())).rad2deg().flip(0)
        torch.testing.assert_close(principal_angles(one, other), expected)


def test_angles_are_of_subspaces_and_not_of_basis_vectors():
    """The entries of U_i' U_j, which the authors' code takes, change with the basis of the same subspace."""
    one, other, *_ = bases()
    turned = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double())[0]
    torch.testing.assert_close(principal_angles(one @ turned, -other), principal_angles(one, other))
    assert float(principal_angles(one, one @ turned).max()) < 1e-4
    entries = (one.T @ one @ turned).clamp(-1, 1).acos().rad2deg()
    assert float(entries.min()) > 1, "by entries a subspace is far from itself"


@pytest.mark.parametrize("distance", ["smallest", "sum"])
def test_clients_with_the_same_directions_are_one_cluster(build, mlp, distance):
    federation = spans([0, 1, 0, 1, 1, 0, 2])
    found = PACFL(30.0, 2, distance).clusters_of(federation.clients, federation.ids)
    assert found.tolist() == [0, 1, 0, 1, 1, 0, 2]
    order = torch.tensor([3, 0, 6, 5, 1, 4, 2])
    permuted = federation.take(order)
    assert torch.equal(PACFL(30.0, 2, distance).clusters_of(permuted.clients, permuted.ids), found[order])


def spans(groups: list[int], noise: float = 0.01) -> Federation:
    """Clients whose rows lie near planes of their groups, which are orthogonal to each other."""
    draw, clients = torch.Generator().manual_seed(1), []
    for group in groups:
        x = noise * torch.randn(30, 8, generator=draw)
        x[:, 2 * group : 2 * group + 2] += torch.randn(30, 2, generator=draw)
        clients.append((x, torch.arange(30) % 4))
    return Federation.from_tensors(clients, test=clients[0], classes=4)


def test_each_cluster_is_fedavg_of_its_clients():
    federation = spans(TWO)
    states = trained(federation, PACFL(30.0, 2), 3)
    assert ari(states[-1], TWO) == 1
    for k in range(2):
        mine = torch.nonzero(states[-1].assignment == k).flatten()
        pairs = [
            (federation.clients.x[each], federation.clients.y[each]) for each in map(federation.clients.owned, mine)
        ]
        alone = Federation.from_tensors(pairs, test=pairs[0], classes=4)
        expected = trained(alone, FedAvg(), 3)[-1].models[0]
        torch.testing.assert_close(states[-1].models[k], expected, rtol=1e-4, atol=1e-6)


def test_pacfl_does_not_see_groups_that_differ_in_labels_alone():
    assert len(trained(relabelled(TWO), PACFL(20.0), 1)[-1].models) == 1


def test_a_single_client_and_one_with_fewer_examples_than_vectors_have_a_cluster():
    few = [(torch.eye(8)[:1], torch.tensor([0])), (torch.eye(8)[:5], torch.arange(5) % 4)]
    single = Federation.from_tensors(few[:1], test=few[1], classes=4)
    assert PACFL().clusters_of(single.clients, single.ids).tolist() == [0]
    federation = Federation.from_tensors(few, test=few[1], classes=4)
    assert PACFL(10.0, 5).clusters_of(federation.clients, federation.ids).tolist() == [0, 0]
