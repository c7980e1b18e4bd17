"""IFCA finds groups
=================

Does IFCA find two groups of clients without group labels?

Fifty clients hold 20 handwritten digits each. Ten minority clients hold upright digits, and forty majority clients hold
digits upside down. A single model must fit both groups. IFCA (Ghosh et al. 2020) keeps two models: in every round, each
client trains the model with the lower loss on the client's examples, and the server averages the updates per model.
"""

import matplotlib.pyplot as plt

import shoal

plt.style.use("shoal.figures")

# %%
# The federation has two groups, which no algorithm knows, and a test set with images of both groups.

digits = shoal.load_dataset("digits")
groups = [shoal.Group("minority", 0.2), shoal.Group("majority", 0.8, rotation=(180, 180))]
partition = shoal.Partition(clients=50, examples_per_client=20, test_examples=390)
federation = shoal.partition_dataset(digits, partition, groups)
print(federation)

# %%
# FedAvg with one model and IFCA with two models use the same local training for 30 rounds.

model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
local = shoal.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)
fedavg = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=30)
ifca = shoal.simulate(federation, model, shoal.IFCA(clusters=2), local, rounds=30)

# %%
# ``result.rounds`` has one row per round and model, with the number of clients and the test accuracy per group. A
# group's accuracy is the mean over its clients' models.


def group_accuracy(result: shoal.Result, group: str) -> list[float]:
    """Test accuracy that the clients of ``group`` have, by round."""
    rows = result.rounds.assign(right=result.rounds[f"accuracy.{group}"] * result.rounds[f"clients.{group}"])
    sums = rows.groupby("round")[["right", f"clients.{group}"]].sum()
    return (sums["right"] / sums[f"clients.{group}"]).tolist()


figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6))
styles = {"minority": ("#D55E00", "o"), "majority": ("#56B4E9", "s")}
first = ifca.rounds[ifca.rounds["cluster"] == 0]
for group, (color, marker) in styles.items():
    share = first[f"clients.{group}"] / (federation.group == federation.groups.index(group)).sum().item()
    left.plot(first["round"], 100 * share, color=color, marker=marker, markevery=3, label=group)
    right.plot(first["round"], group_accuracy(ifca, group), color=color, marker=marker, markevery=3)
    right.plot(first["round"], group_accuracy(fedavg, group), color=color, linestyle="--", marker=marker, markevery=3)
left.set(xlabel="round", ylabel="clients that train model 0 (%)", ylim=(-4, 104))
left.legend(title="group", loc="center right")
right.set(xlabel="round", ylabel="accuracy on the group's test images", ylim=(0, 1))
right.plot([], [], color="#666666", label="IFCA, two models")
right.plot([], [], color="#666666", linestyle="--", label="FedAvg, one model")
right.legend(loc="lower right")
plt.show()

# %%
# Results for seed 0:

agreement = ifca.summary.overall["adjusted_rand_index"]
print(
    f"agreement of models and groups after 30 rounds (adjusted Rand index): {agreement:.2f}; 1 is perfect, 0 is chance"
)
for group in federation.groups:
    one, two = (each.summary.by_group[group]["accuracy"] for each in (fedavg, ifca))
    print(f"{group}: accuracy {one:.3f} with one model, {two:.3f} with two")
