"""IFCA finds groups of clients
============================

Do clients whose labels depend on different columns end up in different clusters? Nobody tells the algorithm who belongs
together: each client trains the model with the lowest loss on its own examples.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import shoal

# %%
# Twelve clients with 20 examples each. The label of four of them is the sign of column 0, of the others that of
# column 1.

draw = np.random.default_rng(0)


def examples(count: int, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (count, 5) and the sign of one column as label."""
    x = draw.normal(size=(count, 5)).astype(np.float32)
    return x, (x[:, column] > 0).astype(int)


groups = ["few"] * 4 + ["many"] * 8
x_few, y_few = examples(200, 0)
x_many, y_many = examples(200, 1)
federation = shoal.Federation.from_tensors(
    [examples(20, 0 if group == "few" else 1) for group in groups],
    groups=groups,
    test=shoal.Examples(
        np.concatenate([x_few, x_many]), np.concatenate([y_few, y_many]), ["few"] * 200 + ["many"] * 200
    ),
    shadow=examples(400, 1),
)

# %%
# Ten rounds of IFCA with two models, and of FedAvg with one.

model = shoal.Model(lambda: torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)))
local = shoal.LocalSGD(epochs=5, batch_size=20)
results = {
    name: shoal.simulate(federation, model, algorithm, local, rounds=10)
    for name, algorithm in {"FedAvg": shoal.FedAvg(), "IFCA": shoal.IFCA(clusters=2)}.items()
}

# %%
# Accuracy on held-out examples of each group, by the model that the group's clients chose.

accuracy = {name: result.clients.groupby("group")["accuracy"].mean() for name, result in results.items()}
fig, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for offset, (name, of_group) in zip((-0.2, 0.2), accuracy.items(), strict=True):
    bars = axes.bar(np.arange(len(of_group)) + offset, of_group, width=0.38, label=name)
    axes.bar_label(bars, fmt="%.2f")
axes.set_xticks(range(2), list(accuracy["IFCA"].index))
axes.set(xlabel="group of clients", ylabel="held-out accuracy", ylim=(0, 1.1))
axes.legend(loc="lower right")

# %%
# The grouping that IFCA found, against the true one: an adjusted Rand index of 1 is the same grouping.

print(results["IFCA"].clients.groupby(["group", "cluster"]).size())
