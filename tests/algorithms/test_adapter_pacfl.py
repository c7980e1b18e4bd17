"""PACFL on adapters: angles against scipy's client by client, clusters by hand, and FedAvg within them."""

from typing import Any

import pytest
import torch
from scipy.cluster import hierarchy
from scipy.linalg import subspace_angles
from torch import Tensor, nn

import shoal
from shoal.algorithms.adapter_subspaces import kept_bases
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, State, Training
from shoal.models import cross_entropy

GROUPS = [0, 1, 0, 1, 1, 0, 0]
LOCAL = LocalSGD(steps=4, batch_size="all", learning_rate=0.5)


def build() -> nn.Module:
    body = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    with torch.no_grad():
        for tensor in body.parameters():  # the same pretrained body for everybody
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel())) / 2)
    return shoal.lora(body, rank=3, alpha=6, targets=["0", "2"])


MODEL = shoal.Model(build)
FOUND = shoal.AdapterPACFL(40.0, root_rounds=1)


def federation(order: list[int] | None = None) -> shoal.Federation:
    """Two groups whose classes lie in other directions."""
    draw, clients = torch.Generator().manual_seed(4), []
    for i, group in enumerate(GROUPS):
        y = torch.randint(0, 3, (20 + i,), generator=draw)
        x = torch.randn(len(y), 8, generator=draw) / 4
        x[torch.arange(len(y)), y + 4 * group] += 2
        clients.append((x, y))
    made = shoal.Federation.from_tensors(clients, test=clients[0], classes=3)
    return made if order is None else made.take(torch.tensor(order))


def played(
    algorithm: Any, rounds: int = 3, of: Any = None, threads: int = 1, model: shoal.Model = MODEL
) -> list[State]:
    with Engine(model, threads=threads) as engine:
        training = Training(engine.prepare(of or federation()), algorithm, LOCAL, engine, Stream(3))
        first = training.start()
        return [first, *(state for state, _ in training.rounds(first, rounds))]


def end_of(row: Tensor, i: int) -> Tensor:
    """Where a client ends by plain PyTorch."""
    network, clients = build(), federation().clients
    network.load_state_dict(MODEL.state_dict(row))
    trained = [tensor for tensor in network.parameters() if tensor.requires_grad]
    optimizer, mine = torch.optim.SGD(trained, 0.5), clients.owned(i)
    for _ in range(4):
        optimizer.zero_grad()
        cross_entropy(network(clients.x[mine]), clients.y[mine]).mean().backward()
        optimizer.step()
    return MODEL.layout.pack(dict(network.named_parameters())).double()


def plain_distances(start: Tensor, ends: list[Tensor], vectors: int, distance: str) -> Tensor:
    """Angles of whole products' singular vectors by scipy, in degrees."""
    layers, sides = ("0", "2"), list[list[Tensor]]()
    for end in ends:
        before, after = MODEL.layout.views(start.double()), MODEL.layout.views(end)
        made = list[Tensor]()
        for layer in layers:
            old, new = (v[f"{layer}.lora_B.weight"] @ v[f"{layer}.lora_A.weight"] for v in (before, after))
            u, _, v = torch.linalg.svd(new - old)
            made += [u[:, :vectors], v[:vectors].T]
        sides.append(made)
    found = torch.zeros(len(ends), len(ends), dtype=torch.float64)
    for i, mine in enumerate(sides):
        for j, other in enumerate(sides):
            angles = [subspace_angles(u.numpy(), v.numpy()) for u, v in zip(mine, other, strict=True)]
            values = [each.min() if distance == "smallest" else each.sum() for each in angles]
            found[i, j] = torch.tensor(values).rad2deg().mean()
    return found


@pytest.mark.parametrize(("vectors", "distance"), [(1, "smallest"), (2, "sum")])
def test_distances_are_scipys_angles_between_plain_pytorch_s_updates(vectors, distance):
    algorithm = shoal.AdapterPACFL(1.0, vectors, distance, root_rounds=1)
    first, state = played(algorithm, 1)
    start = first.models[0]
    expected = plain_distances(start, [end_of(start, i) for i in range(len(GROUPS))], vectors, distance)
    bases = state.server["adapter_pacfl.bases"]
    found = algorithm.distances(bases, bases, MODEL.layout)
    apart = ~torch.eye(len(GROUPS), dtype=torch.bool)
    # Clients train in float32; of the same updates angles are equal to 1e-6.
    torch.testing.assert_close(found[apart], expected[apart], atol=1e-2, rtol=0)
    ends = [start.double() + (end - start.double()).float().double() for end in (end_of(start, i) for i in range(7))]
    bases = kept_bases(start, MODEL.layout, vectors)(torch.stack([(end - start.double()).float() for end in ends]))
    exact = plain_distances(start, ends, vectors, distance)
    torch.testing.assert_close(algorithm.distances(bases, bases, MODEL.layout)[apart], exact[apart], atol=1e-6, rtol=0)
    middle = float((exact[apart].min() + exact.max()) / 2)
    tree = hierarchy.linkage(exact[tuple(torch.triu_indices(7, 7, 1))].numpy(), "average")
    labels = hierarchy.fcluster(tree, middle, "distance")
    clusters = shoal.AdapterPACFL(middle, vectors, distance).clusters_of(bases, MODEL.layout).tolist()
    assert [[a == b for b in clusters] for a in clusters] == [[a == b for b in labels] for a in labels]


def test_fedavg_goes_on_in_the_groups_from_the_model_of_all():
    first, root, after, _ = states = played(FOUND)
    assert root.clients["adapter_pacfl.cluster"].tolist() == GROUPS
    sizes = torch.tensor([20.0 + i for i in range(len(GROUPS))], dtype=torch.float64)
    ends = torch.stack([end_of(first.models[0], i) for i in range(len(GROUPS))])
    for model in root.models:
        torch.testing.assert_close(model.double(), (sizes / sizes.sum()) @ ends, atol=1e-6, rtol=0)
    for k in range(2):
        mine = [i for i, group in enumerate(GROUPS) if group == k]
        ends = torch.stack([end_of(root.models[k], i) for i in mine])
        torch.testing.assert_close(
            after.models[k].double(), (sizes[mine] / sizes[mine].sum()) @ ends, atol=1e-6, rtol=0
        )
    assert torch.equal(played(FOUND, threads=2)[-1].models, states[-1].models)
    order = [3, 0, 6, 5, 1, 4, 2]
    other = played(FOUND, of=federation(order))[-1]
    assert torch.equal(other.assignment, states[-1].assignment[order])


def test_a_large_angle_is_fedavg_and_networks_without_adapters_are_clustered_by_their_weights():
    assert len(played(shoal.AdapterPACFL(91.0, root_rounds=1), 1)[-1].models) == 1
    states = played(shoal.AdapterPACFL(50.0, root_rounds=2), model=shoal.Model(lambda: nn.Linear(8, 3)))
    assert [len(state.models) for state in states] == [1, 1, 3, 3]
    clusters = zip(states[-1].assignment.tolist(), GROUPS, strict=True)
    assert len({*clusters}) == 3, "no cluster has clients of both groups"


def test_a_newcomer_joins_those_at_the_least_angles_and_moves_no_model(monkeypatch):
    rounds = {1: [0, 1, 2, 3, 5], 2: [4], 3: [6, 0, 1]}
    monkeypatch.setattr(Training, "cohort", lambda self, number: torch.tensor(sorted(rounds[number])))
    states = played(FOUND, 3)
    assert [state.clients["adapter_pacfl.cluster"].tolist() for state in states[1:]] == [
        [0, 1, 0, 1, -1, 0, -1],
        [0, 1, 0, 1, 1, 0, -1],
        [0, 1, 0, 1, 1, 0, 0],
    ]
    assert torch.equal(states[2].models, states[1].models)
