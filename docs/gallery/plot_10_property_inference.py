"""What aggregated updates say of one client
=========================================

Can a client infer in which rounds another client trains on examples with a certain property?

In federated averaging, a client knows the model before and after a round. The difference between both models aggregates
the updates of all clients. The attacker (Melis et al. 2019) simulates such updates on its own examples, with and
without the property, and trains a random forest to classify the differences. The victim trains on examples with the
property in every fifth round.
"""

from dataclasses import replace

import matplotlib.pyplot as plt
import torch

import shoal

plt.style.use("shoal.figures")
CLIENTS = (3, 5, 10, 20)

# %%
# Each of two properties is independent of the task and holds for a quarter of the digits: pale ink with half the
# brightness, or a faint mark in a corner that is dark in all other images.

digits = shoal.load_dataset("digits")
has_property = torch.rand(len(digits.labels), generator=torch.Generator().manual_seed(0)) < 0.25
pale, marked = digits.pixels.clone(), digits.pixels.clone()
pale[has_property] //= 2
marked[has_property, :, 0, 0] = digits.white // 4
datasets = {
    "pale ink": replace(digits, pixels=pale, has_property=has_property),
    "a mark in a dark corner": replace(digits, pixels=marked, has_property=has_property),
}

# %%
# With more clients, the victim contributes less to the update. In every round, Shoal also computes the counterfactual
# update with the victim's other examples. The attacker is right about a pair if the update with the property has the
# higher score, so 0.5 is chance.

model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
local = shoal.LocalSGD(steps=1, batch_size=32, learning_rate=0.1)
attack = shoal.PropertyAttack(simulate_every=5)
right = {}
for name, dataset in datasets.items():
    for clients in CLIENTS:
        partition = shoal.Partition(clients, 1200 // clients, test_examples=400)
        plan = shoal.PropertyPartition(partition, period=5, min_examples=16)
        federation = shoal.partition_by_property(dataset, plan)
        simulation = shoal.Simulation(federation, model, shoal.FedAvg(), local, rounds=60, round_attack=attack)
        result = shoal.Run(simulation).train()
        right[name, clients] = result.summary.overall["property.auc_counterfactual"]

# %%

figure, ax = plt.subplots(figsize=(6.4, 3.8))
for name, color, line, marker in (
    ("a mark in a dark corner", "#D55E00", "-", "s"),
    ("pale ink", "#0072B2", "--", "o"),
):
    ax.plot(CLIENTS, [right[name, clients] for clients in CLIENTS], line, color=color, marker=marker, label=name)
ax.axhline(0.5, color="#777777", linestyle=":", label="chance")
ax.set(xscale="log", xticks=CLIENTS, xticklabels=CLIENTS, ylim=(0, 1.04))
ax.minorticks_off()
ax.set(xlabel="clients in a round", ylabel="pairs in which the attacker is right")
ax.legend(title="property", loc="lower left")
plt.show()

# %%
# Results for seed 0, with 60 pairs per point:

for name in datasets:
    points = ", ".join(f"{clients} clients {right[name, clients]:.2f}" for clients in CLIENTS)
    print(f"{name}: {points}")

# %%
# The weights of a pixel change only if a client has ink at this pixel. Averaging over many clients does not hide a
# feature that only one client has. Pale ink slightly changes every weight, as any other batch does.
