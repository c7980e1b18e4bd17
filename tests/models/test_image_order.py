"""Networks that call `view` on what a convolution gives, as many tutorials do, train as those that call `flatten`."""

import pytest
import torch
from torch import Tensor, nn

from shoal import DPSGD, FedAvg, Federation, LocalSGD, Model, simulate


class Net(nn.Module):
    def __init__(self, channels: int, flatten: bool, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 4, 3), nn.Conv2d(4, 2, 3)
        self.between = nn.Sequential(nn.BatchNorm2d(2), nn.Dropout(dropout)) if dropout else nn.Identity()
        self.output, self.flatten = nn.Linear(8, 3), flatten

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(self.second(torch.relu(self.first(x))))
        return self.output(x.flatten(1) if self.flatten else x.view(-1, 8))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("setting", ["vmap", "loop with buffers and dropout", "private"])
def test_view_gives_the_models_of_flatten(channels, setting):
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.rand(7, channels, 6, 6, generator=draw), torch.arange(7) % 3) for _ in range(3)]
    federation = Federation.from_tensors(clients, test=(torch.rand(9, channels, 6, 6, generator=draw), [0, 1, 2] * 3))
    defences = {"defenses": [DPSGD(noise_multiplier=1.0)]} if setting == "private" else {}
    dropout = 0.3 if "dropout" in setting else 0.0

    def trained(flatten: bool) -> list[dict[str, Tensor]]:
        model = Model(lambda: Net(channels, flatten, dropout))
        return simulate(federation, model, FedAvg(), LocalSGD(batch_size=4), rounds=2, **defences).models

    viewed = trained(flatten=False)
    for name, tensor in trained(flatten=True)[0].items():
        torch.testing.assert_close(viewed[0][name], tensor, rtol=1e-4, atol=1e-6)  # the last bits may differ


def test_finding_the_order_of_images_calls_no_hook_of_others():
    network, calls = Model(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 2))).network(), []
    network[0].register_forward_hook(lambda *_: calls.append("after"))
    network[2].register_forward_pre_hook(lambda *_: calls.append("before"))
    network(torch.zeros(2, 1, 6, 6))
    assert calls == ["after", "before"]
