"""Risk in the choice of a model
=============================

How strongly must clients weight risk before they change their model?

In IFCA-MIR (Jung, Biswas, Palamidessi), a client chooses the model with the smallest ``(1 - beta) * loss + beta *
risk``. The risk is the accuracy of a membership attack on the model, which the server estimates every few rounds.
``beta = 0`` gives IFCA. A client with ``beta = 1`` ignores the loss, so the chosen model may not fit the client's data.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal

plt.style.use("shoal.figures")
SEEDS, BETAS = range(3), (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)

# %%
# The two groups differ strongly. All clients have the same beta. In every tenth round, a loss threshold estimates the
# risk, with two shadow models per model. If all clients choose one model, the log warns about too few server examples.

digits = shoal.load_dataset("digits")
groups = [shoal.Group("minority", 0.3), shoal.Group("majority", 0.7, rotation=(180, 180))]
partition = shoal.Partition(clients=30, examples_per_client=20, shadow_examples=840, test_examples=350)
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
local = shoal.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)
shadows = shoal.ShadowModels(number=2)
red_team = shoal.RedTeam(every=10, attack=shoal.LossThreshold(), shadow_models=shadows)

moved, accuracy, risks = np.zeros((3, len(SEEDS), len(BETAS)))
for i, seed in enumerate(SEEDS):
    stream = shoal.Stream(seed)
    for j, beta in enumerate(BETAS):
        preferences = shoal.draw_preferences(30, (0.5, 0.8), beta, stream)
        federation = shoal.partition_dataset(digits, partition, groups, preferences, stream)
        result = shoal.simulate(
            federation, model, shoal.IFCAMIR(shoal.IFCA(clusters=2)), local, rounds=30, seed=seed, red_team=red_team
        )
        moved[i, j] = result.summary.overall["migrated"]
        accuracy[i, j] = result.summary.overall["accuracy.overall"]
        risks[i, j] = abs(np.subtract(*[each["risk"] for each in result.summary.by_cluster.values()]))

# %%
# A client has migrated if another group holds the majority of the clients that use its model.

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6))
places = range(len(BETAS))
for i, (seed, marker, line) in enumerate(zip(SEEDS, "os^", ("-", "--", ":"), strict=True)):
    left.plot(places, moved[i], line, marker=marker, label=f"seed {seed}")
    right.plot(places, accuracy[i], line, marker=marker)
for ax, label in ((left, "migrated clients (of 30)"), (right, "accuracy of clients' models")):
    ax.set(xticks=places, xticklabels=[f"{beta:g}" for beta in BETAS], xlabel="beta, the weight of risk", ylabel=label)
left.legend()
plt.show()

# %%
# Results for seeds 0 to 2:

for beta, clients, right_ones in zip(BETAS, moved.mean(axis=0), accuracy.mean(axis=0), strict=True):
    print(f"beta {beta:4.2f}: {clients:4.1f} of 30 clients migrated, accuracy {right_ones:.3f}")
print(f"The two models' risks differed by {np.median(risks):.3f} at the end (median of all runs).")
