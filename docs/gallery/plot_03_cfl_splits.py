"""CFL divides clusters
====================

How can a server find groups if clients do not choose a model?

In CFL (Sattler et al. 2019), all clients start with one model. If the average update is small but single updates are
large, the clients' objectives conflict, and the server splits the cluster by the cosines of the updates. The number of
clusters need not be known in advance.
"""

import matplotlib.pyplot as plt

import shoal

plt.style.use("shoal.figures")

# %%
# The three groups disagree about the labels: label 0 of the first group is 3 in the second group and 6 in the third.

digits = shoal.load_dataset("digits")
groups = [
    shoal.Group("as printed", 0.5),
    shoal.Group("shifted by 3", 0.3, label_shift=3),
    shoal.Group("shifted by 6", 0.2, label_shift=6),
]
partition = shoal.Partition(clients=30, examples_per_client=30, test_examples=600)
federation = shoal.partition_dataset(digits, partition, groups)

# %%
# The server may split a cluster if the average update is shorter than ``eps1`` and a client's update is longer than
# ``eps2``. Suitable thresholds depend on the network and on local training.

model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
local = shoal.LocalSGD(epochs=3, batch_size=10, learning_rate=0.1)
result = shoal.simulate(federation, model, shoal.CFL(eps1=0.4, eps2=0.6, warm_up=3, min_clients=3), local, rounds=40)

# %%

figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 5.2), sharex=True)
for (k, rows), line, marker in zip(result.rounds.groupby("cluster"), ("-", "--", "-.", ":"), "os^D", strict=False):
    above.plot(rows["round"], rows["clients"], line, marker=marker, markevery=4, label=f"model {k}")
    below.plot(rows["round"], rows["accuracy"], line, marker=marker, markevery=4)
above.set(ylabel="clients", ylim=(0, 31))
above.legend(loc="upper right")
below.set(xlabel="round", ylabel="accuracy on the\nclients' groups", ylim=(0, 1))
plt.show()

# %%
# Results for seed 0:

models = result.rounds.groupby("round").size()
splits = models.index[models.diff() > 0].tolist()
print(f"clusters were divided in rounds {splits}; {models.iloc[-1]} models in the end for {len(groups)} groups")
print(result.clients.groupby(["cluster", "group"]).size())
print(f"agreement with the groups (adjusted Rand index): {result.summary.overall['adjusted_rand_index']:.2f}")
