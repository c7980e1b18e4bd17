"""A shared body: pooling of some coordinates, by the network's names."""

import pytest
import torch
from torch import nn

from shoal.algorithms import IFCA, FedAvg, Pooling, SharedBody
from shoal.algorithms.wrappers.shared_body import head_of
from shoal.core.errors import InputError
from shoal.core.layout import Layout
from shoal.models import Model

NETWORKS = {
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), "2."),
    "batch norm after it": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.BatchNorm1d(2)), "1."),
    "texts": (lambda: nn.Sequential(nn.Embedding(9, 4), nn.GRU(4, 3), nn.Linear(3, 2)), "2."),
}


@pytest.mark.parametrize(("network", "head"), NETWORKS.values(), ids=NETWORKS)
def test_the_head_is_the_last_linear_layer_and_nothing_else(network, head):
    layout = Model(network).layout
    found = layout.views(head_of(layout, "last"))
    assert {name for name, each in found.items() if bool(each.any())} == {name for name in found if name[:2] == head}
    assert all(bool(each.all()) or not bool(each.any()) for each in found.values())


def test_it_is_pooling_with_1_on_the_body_and_0_on_the_head(play, mlp):
    (_, shared), _ = play(SharedBody(IFCA(2)), rounds=1)
    (_, together), _ = play(Pooling(IFCA(2), 1.0), rounds=1)
    (_, apart), _ = play(IFCA(2), rounds=1)
    head = head_of(mlp.layout, "last")
    assert torch.equal(head, torch.arange(mlp.layout.size) >= 36 * 8 + 8)
    assert torch.equal(shared.models[:, ~head], together.models[:, ~head])
    assert torch.equal(shared.models[:, head], apart.models[:, head])
    assert not torch.equal(together.models, apart.models)


def test_another_layer_may_be_the_head(play, mlp):
    (*_, last), _ = play(SharedBody(IFCA(2), head="hidden"))
    views = mlp.layout.views(last.models)
    assert torch.equal(*views["output.weight"])
    assert not torch.equal(*views["hidden.weight"])


def test_one_model_is_its_base(play):
    one, base = (play(each)[0][-1] for each in (SharedBody(FedAvg()), FedAvg()))
    assert torch.equal(one.models, base.models)


def test_networks_without_such_a_head_are_one_sentence(play):
    with pytest.raises(InputError, match=r"^'head' must be 'last' or a layer of the network, 'hidden' or 'output'; "):
        play(SharedBody(head="outptu"))
    for network, sentence in (
        (lambda: nn.Linear(4, 3), "^a shared body needs a network of several layers with parameters; this one has"),
        (lambda: nn.Conv2d(1, 2, 3), "^a shared body needs a network with a linear layer, or 'head' by its name$"),
    ):
        with pytest.raises(InputError, match=sentence):
            head_of(Model(network).layout, "last")


def test_frozen_layers_are_no_head():
    layout = Layout.from_tensors(
        {"a.weight": torch.zeros(2, 3), "b.weight": torch.zeros(2, 2)}, {"c.weight": torch.zeros(1, 2)}
    )
    assert head_of(layout, "last").tolist() == [False] * 6 + [True] * 4 + [False] * 2
