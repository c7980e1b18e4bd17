"""When IFCA does not find the groups
==================================

Do the initial models of IFCA matter?

IFCA finds groups that differ strongly (:ref:`sphx_glr_auto_gallery_plot_01_ifca_finds_groups.py`). In this example the
groups overlap: minority digits are rotated by 0 to 25 degrees, and majority digits by 25 to 50 degrees. One of two
random models may then fit both groups better, so all clients train that model in every round. A better start avoids
this collapse.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal

plt.style.use("shoal.figures")
SEEDS = range(5)

# %%
# The example compares four starts. "Redraw" follows the code of IFCA's authors: random models are redrawn until each
# model is the best for enough clients. "Farthest-first" adds the model of the client with the highest loss on the
# models so far. In the "one-shot" start, every client trains alone for one long round, and k-means of the updates gives
# the two models.

local = shoal.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)
alone = shoal.LocalSGD(epochs=50, batch_size=10, learning_rate=0.1)
ifca = shoal.IFCA(clusters=2)
starts = {
    "random": ifca,
    "redraw": shoal.IFCA(clusters=2, redraw=shoal.Redraw()),
    "farthest-first": shoal.HypCluster(clusters=2, start="farthest-first"),
    "one-shot": shoal.OneShotStart(ifca, alone),
}

# %%
# Each start runs on the same five federations, drawn with five seeds.

digits = shoal.load_dataset("digits")
groups = [shoal.Group("minority", 0.3, rotation=(0, 25)), shoal.Group("majority", 0.7, rotation=(25, 50))]
partition = shoal.Partition(clients=50, examples_per_client=20, test_examples=390)
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
agreement, accuracy = np.zeros((2, len(starts), len(SEEDS)))
for j, seed in enumerate(SEEDS):
    federation = shoal.partition_dataset(digits, partition, groups, stream=shoal.Stream(seed))
    for i, algorithm in enumerate(starts.values()):
        result = shoal.simulate(federation, model, algorithm, local, rounds=20, seed=seed)
        agreement[i, j] = result.summary.overall["adjusted_rand_index"]
        accuracy[i, j] = result.summary.overall["accuracy.overall"]

# %%
# A mark is one federation, and a bar is the mean.

figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.6))
for ax, values, label in (
    (axes[0], agreement, "agreement (adjusted Rand index)"),
    (axes[1], accuracy, "accuracy of clients' models"),
):
    for i, row in enumerate(values):
        ax.plot(i + np.linspace(-0.15, 0.15, len(row)), row, "o", color="#0072B2", markerfacecolor="none")
        ax.plot([i - 0.3, i + 0.3], [row.mean()] * 2, color="#D55E00")
    ax.set(xticks=range(len(starts)), xticklabels=starts, ylabel=label)
    ax.grid(visible=False, axis="x")
plt.show()

# %%
# Results for seeds 0 to 4:

for i, name in enumerate(starts):
    found = int((agreement[i] > 0.8).sum())
    print(f"{name}: groups found (index above 0.8) in {found} of {len(SEEDS)}, mean accuracy {accuracy[i].mean():.3f}")
