"""Your own network
================

How do you train your own network in a federation, and does it beat a linear model?

A model is a function that builds a ``torch.nn.Module``. Shoal draws the initial weights, trains copies of the network
at the clients and averages them.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import shoal

plt.style.use("shoal.figures")

# %%
# Each layer of a residual network adds to its input.


class Residual(nn.Module):
    """From images (B, 1, 8, 8) to outputs (B, 10), before softmax."""

    def __init__(self, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Outputs of a batch."""
        x = self.first(images.flatten(1))
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.last(x)


# %%
# The federation is made from tensors: twenty clients with 40 digits each, and a test set of all other images.

data = load_digits()
x = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
y = torch.tensor(data.target)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
clients, test = order[:800].split(40), order[800:]
federation = shoal.Federation.from_tensors([(x[own], y[own]) for own in clients], test=(x[test], y[test]))

# %%
# The three networks, each a class or function without arguments, use the same local training.

networks = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    "residual, 1 layer": lambda: Residual(depth=1),
    "residual, 3 layers": Residual,
}
local = shoal.LocalSGD(epochs=2, batch_size=10, learning_rate=0.1)
results = {}
for name, network in networks.items():
    model = shoal.Model(network)
    results[name] = model, shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=25)

# %%

figure, ax = plt.subplots(figsize=(6.4, 3.8))
for (name, (model, result)), line, marker in zip(results.items(), ("-", "--", "-."), "os^", strict=True):
    label = f"{name} ({model.parameters:,} parameters)"
    ax.plot(result.rounds["round"], result.rounds["accuracy"], line, marker=marker, markevery=3, label=label)
ax.set(xlabel="round", ylabel="accuracy on 997 test images", ylim=(0, 1))
ax.legend(loc="lower right")
plt.show()

# %%
# Results for seed 0 after 25 rounds. A membership attack can use the gap between training and test accuracy.

for name, (_, result) in results.items():
    found = result.summary.overall
    print(f"{name}: test {found['accuracy.overall']:.3f}, training {found['train_accuracy.overall']:.3f}")

# %%
# The trained weights are a ``state_dict``, which plain PyTorch can load.

trained = Residual()
trained.load_state_dict(results["residual, 3 layers"][1].models[0])
right = (trained(x[test]).argmax(dim=1) == y[test]).float().mean()
print(f"the same network in plain PyTorch: {right:.3f}")
