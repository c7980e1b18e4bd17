"""HiLoRA: against plain PyTorch client by client, its subspaces against scipy's, and what stays fixed in each tier."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy.linalg import subspace_angles
from torch import Tensor, nn

import shoal
from shoal.algorithms.adapter_subspaces import kept_bases, similarity
from shoal.algorithms.clusters.hilora import tiers
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, LocalSGD, State, Training
from shoal.models import cross_entropy

GROUPS = [0, 1, 0, 1, 1, 0, 0]
LOCAL = LocalSGD(steps=3, batch_size="all", learning_rate=0.4)
HILORA = shoal.HiLoRA(tier_rounds=(2, 2), max_clusters=3, directions=1, orthogonality=0.3)


def build() -> nn.Module:
    body = nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3))
    with torch.no_grad():
        for tensor in body.parameters():  # the same pretrained body for everybody
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel())) / 2)
    return shoal.lora(body, rank=4, alpha=8, targets=["0", "2"], train=["4"])


MODEL = shoal.Model(build)


def federation(order: list[int] | None = None) -> shoal.Federation:
    """Two groups that use other words for the same three classes."""
    draw, clients = torch.Generator().manual_seed(4), []
    for i, group in enumerate(GROUPS):
        y = torch.randint(0, 3, (9 + i,), generator=draw)
        noise = torch.randint(1, 4, (2, len(y)), generator=draw)
        x = torch.stack([1 + y, *noise], dim=1) + 4 * group
        clients.append((x, y))
    made = shoal.Federation.from_tensors(clients, test=clients[0], classes=3)
    return made if order is None else made.take(torch.tensor(order))


def played(algorithm: Any = HILORA, rounds: int = 6, threads: int = 1, of: Any = None, **others: Any) -> list[State]:
    with Engine(MODEL, threads=threads) as engine:
        training = Training(engine.prepare(of or federation()), algorithm, LOCAL, engine, Stream(3), **others)
        first = training.start()
        return [first, *(state for state, _ in training.rounds(first, rounds))]


def deployed(state: State, algorithm: Any = HILORA) -> Tensor:
    with Engine(MODEL, threads=1) as engine:
        training = Training(engine.prepare(federation()), algorithm, LOCAL, engine, Stream(3))
        cohort = training.cohort_of(state, torch.arange(len(GROUPS)))
        found = algorithm.deployed(state, cohort)
        return torch.stack([found.models[int(i)] for i in found.model])


def test_every_client_ends_where_plain_pytorch_does():
    """Tiers are slices of tensors here, the penalty is autograd's, and clusters are the known groups."""
    ranks = {0: [0, 1], 1: [2], 2: [3]}
    states, clients = played(), federation().clients

    def pieces(network: nn.Module, tier: int) -> list[tuple[Tensor, Any]]:
        """The trained tensors of a tier, and which of their entries."""
        named = dict(network.named_parameters())
        columns, rows = (slice(None), ranks[tier]), (ranks[tier], slice(None))
        entries = {"0.lora_A": columns, "0.lora_B": columns, "2.lora_A": rows, "2.lora_B": columns}
        chosen: list[tuple[Tensor, Any]] = [(named[f"{name}.weight"], places) for name, places in entries.items()]
        return chosen if tier == 2 else [*chosen, (named["4.weight"], ...), (named["4.bias"], ...)]

    def trained(start: dict[str, Tensor], i: int, tier: int) -> dict[str, Tensor]:
        network = build()
        network.load_state_dict(start)
        x, y = clients.x[clients.owned(i)], clients.y[clients.owned(i)]
        for _ in range(3):
            loss = cross_entropy(network(x), y).mean()
            named = dict(network.named_parameters())
            for a in () if tier == 0 else (named["0.lora_A.weight"].T, named["2.lora_A.weight"]):
                before = a[[rank for earlier in range(tier) for rank in ranks[earlier]]].detach()
                # The projection on their rows, by the pseudo-inverse.
                loss = loss + 0.3 * (a[ranks[tier]] @ torch.linalg.pinv(before) @ before).square().sum()
            network.zero_grad()
            loss.backward()
            with torch.no_grad():
                for tensor, entries in pieces(network, tier):
                    tensor[entries] -= 0.4 * tensor.grad[entries]
        return {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def averaged(ends: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
        total = sum(9 + i for i in ends)
        first = next(iter(ends.values()))
        return {name: sum((9 + i) / total * end[name] for i, end in ends.items()) for name in first}  # type: ignore[misc]

    model: dict[str, Tensor] = MODEL.state_dict(states[0].models[0])
    everybody = range(len(GROUPS))
    for _ in range(2):
        model = averaged({i: trained(model, i, 0) for i in everybody})
    groups = [model, model]
    for _ in range(2):
        groups = [averaged({i: trained(groups[k], i, 1) for i in everybody if GROUPS[i] == k}) for k in range(2)]
    own = [groups[GROUPS[i]] for i in everybody]
    for _ in range(2):
        own = [trained(own[i], i, 2) for i in everybody]
    assert states[-1].assignment.tolist() == GROUPS
    for i, row in enumerate(deployed(states[-1])):
        assert torch.allclose(row, MODEL.layout.pack(own[i]), atol=1e-6), i
    for k in range(2):
        assert torch.allclose(states[-1].models[k], MODEL.layout.pack(groups[k]), atol=1e-6)


def test_similarity_is_the_mean_squared_cosine_of_scipys_angles():
    layout = MODEL.layout
    start = MODEL.init(Stream(1)) + 0.1 * torch.randn(layout.size, generator=torch.Generator().manual_seed(0))
    updates = torch.randn(3, layout.size, generator=torch.Generator().manual_seed(2))
    found = similarity(*[kept_bases(start, layout, 2, tiers(layout) == 0)(updates)] * 2, layout, 2)

    def product(row: Tensor, layer: str) -> Tensor:
        views = layout.views(row.double())
        a, b = views[f"{layer}.lora_A.weight"], views[f"{layer}.lora_B.weight"]
        return a[:, :2] @ b[:, :2].T if layer == "0" else b[:, :2] @ a[:2]

    total = torch.zeros(3, 3, dtype=torch.float64)
    for layer in ("0", "2"):
        sides = [torch.linalg.svd(product(start + u, layer) - product(start, layer)) for u in updates]
        for pick in (lambda s: s[0][:, :2], lambda s: s[2][:2].T):
            for i in range(3):
                for j in range(3):
                    angles = subspace_angles(pick(sides[i]).numpy(), pick(sides[j]).numpy())
                    total[i, j] += float((torch.tensor(angles).cos() ** 2).mean()) / 4
    torch.testing.assert_close(found, total, atol=1e-6, rtol=0)


def test_each_tier_leaves_the_others_as_they_are():
    of, states = tiers(MODEL.layout), played()
    assert sorted(of.unique().tolist()) == [-1, 0, 1, 2]
    moved = [
        {int(tier) for tier in of[after.models[0] != before.models[0]].unique()} for before, after in pairwise(states)
    ]
    assert moved == [{-1, 0}, {-1, 0}, {-1, 1}, {-1, 1}, set(), set()]
    rows = deployed(states[-1])
    for i, k in enumerate(GROUPS):
        differs = of[rows[i] != states[-1].models[k]].unique().tolist()
        assert differs == [2]


def test_threads_the_order_of_clients_and_a_pause_change_nothing():
    states = played()
    assert torch.equal(played(threads=3)[-1].models, states[-1].models)
    order = [3, 0, 6, 5, 1, 4, 2]
    other = played(of=federation(order))[-1]
    assert torch.equal(other.assignment, states[-1].assignment[order])
    torch.testing.assert_close(
        other.personal["hilora.leaf"].tensor(), states[-1].personal["hilora.leaf"].tensor()[order]
    )
    with Engine(MODEL, threads=1) as engine:
        training = Training(engine.prepare(federation()), HILORA, LOCAL, engine, Stream(3))
        resumed = [state for state, _ in training.rounds(states[3], 6)][-1]
    assert torch.equal(resumed.models, states[-1].models)


def test_a_newcomer_joins_those_that_it_is_similar_to_and_moves_no_model(monkeypatch):
    rounds = {1: [0, 1, 2, 3, 5], 2: [0, 1, 2, 3, 5], 3: [4], 4: [6, 0, 1]}
    monkeypatch.setattr(Training, "cohort", lambda self, number: torch.tensor(sorted(rounds[number])))
    states = played(replace(HILORA, max_clusters=2), 4)
    assert [state.clients["hilora.cluster"].tolist() for state in states[2:]] == [
        [0, 1, 0, 1, -1, 0, -1],
        [0, 1, 0, 1, 1, 0, -1],
        [0, 1, 0, 1, 1, 0, 0],
    ]
    assert torch.equal(states[3].models, states[2].models)
    assert not torch.equal(states[4].models, states[3].models)


def test_networks_that_cannot_be_tiered_are_refused():
    small = shoal.Model(lambda: shoal.lora(nn.Linear(12, 3), rank=2))
    normed = shoal.Model(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))
    for model, sentence in ((small, "rank 3 at least"), (normed, "has the buffers")):
        with Engine(model, threads=1) as engine, pytest.raises(InputError, match=sentence):
            HILORA.init(engine, federation(), LOCAL, Stream(0))
