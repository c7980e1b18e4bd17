"""A model for each client
=======================

How many examples per client make personal models worthwhile?

Several methods lie between one model for all clients and one separate model per client: a model per cluster, a personal
model that is pulled towards the common model (Ditto), and a common model that each client fine-tunes.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal

plt.style.use("shoal.figures")
EXAMPLES, SEEDS = (10, 20, 40), range(2)

# %%
# Twenty clients form two groups that disagree about labels: label 0 of one group is 5 in the other.

digits = shoal.load_dataset("digits")
groups = [shoal.Group("as printed", 0.5), shoal.Group("shifted by 5", 0.5, label_shift=5)]
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
algorithms = {
    "one model (FedAvg)": shoal.FedAvg(),
    "each alone": shoal.LocalOnly(),
    "fine-tuned FedAvg": shoal.FineTuning(shoal.FedAvg()),
    "Ditto": shoal.Ditto(shoal.FedAvg()),
    "two clusters (IFCA)": shoal.IFCA(clusters=2),
}
accuracy = np.zeros((len(algorithms), len(EXAMPLES), len(SEEDS)))
for j, examples in enumerate(EXAMPLES):
    partition = shoal.Partition(clients=20, examples_per_client=examples, test_examples=600)
    for s, seed in enumerate(SEEDS):
        federation = shoal.partition_dataset(digits, partition, groups, stream=shoal.Stream(seed))
        # As many steps with few examples as with many.
        local = shoal.LocalSGD(steps=10, batch_size=10, learning_rate=0.1)
        for i, algorithm in enumerate(algorithms.values()):
            result = shoal.simulate(federation, model, algorithm, local, rounds=25, seed=seed)
            accuracy[i, j, s] = result.summary.overall["accuracy.overall"]

# %%
# Marks are means over two federations, and bars connect the two values.

figure, ax = plt.subplots(figsize=(7.6, 4.0))
for (name, values), line, marker, shift in zip(
    zip(algorithms, accuracy, strict=True), ("-", "--", "-.", ":", "-"), "os^Dv", np.linspace(-0.1, 0.1, 5), strict=True
):
    mean = values.mean(axis=1)
    spread = np.abs(np.stack([values.min(axis=1), values.max(axis=1)]) - mean)
    ax.errorbar(np.arange(len(EXAMPLES)) + shift, mean, spread, linestyle=line, marker=marker, label=name)
ax.set(xticks=range(len(EXAMPLES)), xticklabels=EXAMPLES, ylim=(0, 1))
ax.set(xlabel="examples of each client", ylabel="accuracy of clients' models")
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
# Mean results over seeds 0 and 1:

for j, examples in enumerate(EXAMPLES):
    mean = accuracy[:, j].mean(axis=1)
    order = sorted(zip(mean, algorithms, strict=True), reverse=True)
    print(f"{examples} examples: " + ", ".join(f"{name} {value:.3f}" for value, name in order))
