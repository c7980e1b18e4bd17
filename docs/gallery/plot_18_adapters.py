"""Adapters of a frozen body, in four clusters
===========================================

How accurate are low-rank adapters of a frozen body, and do they reduce exposure?

A server trains a network on public digits. Clients have digits that are rotated by 0, 90, 180 or 270 degrees. Each of
four clusters trains a head and low-rank updates (LoRA) of the frozen body. For comparison, clusters train only the
head, or all parameters. The adapters are implemented by `peft`.
"""

from copy import deepcopy

import matplotlib.pyplot as plt
import peft
import torch
from torch import nn

import shoal

plt.style.use("shoal.figures")
SEED = 0

# %%
# Sixteen clients in four groups have 50 digits each. The server's digits are upright.

angles = (0, 90, 180, 270)
groups = [shoal.Group(f"turned {a}", 0.25, rotation=(a, a), shadow_share=float(a == 0)) for a in angles]
partition = shoal.Partition(clients=16, examples_per_client=50, shadow_examples=400, test_examples=400)
federation = shoal.partition_dataset(shoal.load_dataset("digits"), partition, groups, stream=shoal.Stream(SEED))

# %%

torch.manual_seed(SEED)
body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(body.parameters(), 3e-3)
for _ in range(60):
    for batch in torch.randperm(400).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(body(federation.shadow.x[batch]), federation.shadow.y[batch]).backward()
        optimizer.step()


def head() -> nn.Module:
    """The body, with a trained last layer."""
    network = deepcopy(body).requires_grad_(False)
    network[5].requires_grad_(requires_grad=True)
    return network


def lora(rank: int) -> nn.Module:
    """The body with low-rank updates of two layers, and the last layer trained."""
    config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=["1", "3"], modules_to_save=["5"])
    return peft.get_peft_model(deepcopy(body), config)


models = {
    "head": shoal.Model(head),
    "LoRA, rank 2": shoal.Model(lambda: lora(2)),
    "LoRA, rank 8": shoal.Model(lambda: lora(8)),
    "everything": shoal.Model(lambda: deepcopy(body)),
}

# %%
# All four models start as the same body, so their losses do not differ. Therefore clients first train separately for
# one round, which separates the groups, and IFCA continues. The audit uses reference federations, retrained without
# some records.

local = shoal.LocalSGD(epochs=2, batch_size=10, learning_rate=0.1)
algorithm = shoal.OneShotStart(shoal.IFCA(clusters=4), shoal.LocalSGD(epochs=20, batch_size=10, learning_rate=0.1))
accuracy, exposure, trained, grouping = [], [], [], []
for model in models.values():
    result = shoal.simulate(federation, model, algorithm, local, rounds=10, seed=SEED)
    strongest = result.audit(references=2).strongest()
    accuracy.append(result.summary.overall["accuracy.overall"])
    grouping.append(result.summary.overall["adjusted_rand_index"])
    exposure.append(strongest["auc"])
    trained.append(model.parameters)

# %%

figure, ax = plt.subplots(figsize=(6.4, 3.8))
for name, x, y, marker in zip(models, accuracy, exposure, "osD^", strict=True):
    ax.plot(x, y, marker, label=name)
ax.axhline(0.5, color="grey", linestyle=":", label="at chance")
ax.set(xlabel="accuracy on 400 test digits", ylabel="AUC of the strongest attack, over all groups")
ax.legend(loc="best")
plt.show()

# %%
# Results for seed 0:

for row in zip(models, trained, accuracy, grouping, exposure, strict=True):
    print("{}: {:,} numbers trained, accuracy {:.3f}, grouping {:.2f}, strongest attack {:.3f}".format(*row))
