"""What aggregated updates say of one client
=========================================

Can a client find out in which rounds another one trains on examples of a certain kind?

In federated averaging a client sees the model before and after a round. Their difference mixes the updates of all
clients. The attacker (Melis et al. 2019) simulates such updates on its own examples, with the property and without it,
and lets a random forest learn the difference. One client, the victim, trains on examples with the property in every
fifth round.
"""

from dataclasses import replace

import matplotlib.pyplot as plt
import torch

import shoal

plt.style.use("shoal.figures")
CLIENTS = (3, 5, 10, 20)

# %%
# Two properties that have nothing to do with the task, each of a quarter of the digits: pale ink, half as bright; and a
# faint mark in a corner that is dark in all other images.

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
# The more clients there are, the smaller is the victim's part of the update. In every round Shoal also computes what
# the update would have been, had the victim trained on its examples of the other kind: the attacker is right about such
# a pair if it is surer of the update with the property. All else is equal within a pair, so 0.5 is guessing.

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
# What it says, for seed 0 and 60 pairs a point:

for name in datasets:
    points = ", ".join(f"{clients} clients {right[name, clients]:.2f}" for clients in CLIENTS)
    print(f"{name}: {points}")

# %%
# The weights of a pixel that is dark in every image never move. If somebody has ink there, they do, however many
# clients are averaged: what only one client has, averaging does not hide. Pale ink changes a little of every weight, as
# any other batch does.
