"""Cluster size and exposure
=========================

Are members of small clusters more exposed than members of large clusters?

Clustering trains a model per group. A model trained on the examples of four clients can memorise each example better
than a model trained on the examples of many clients.
"""

import matplotlib.pyplot as plt

import shoal

plt.style.use("shoal.figures")

# %%
# Four groups of 4, 8, 16 and 32 clients differ in the rotation of their digits. Every client has 16 digits. IFCA starts
# from clusters of models that clients trained separately for one long round.

digits = shoal.load_dataset("digits")
sizes = {0: 4, 90: 8, 180: 16, 270: 32}
groups = [shoal.Group(f"{angle} degrees", size / 60, rotation=(angle, angle)) for angle, size in sizes.items()]
partition = shoal.Partition(clients=60, examples_per_client=16, test_examples=800)
federation = shoal.partition_dataset(digits, partition, groups)
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
algorithm = shoal.OneShotStart(shoal.IFCA(clusters=4), shoal.LocalSGD(epochs=50, batch_size=8, learning_rate=0.1))
local = shoal.LocalSGD(epochs=5, batch_size=8, learning_rate=0.1)
result = shoal.simulate(federation, model, algorithm, local, rounds=25)
print(result.clients.groupby(["cluster", "group"]).size())

# %%
# The audit trains eight reference federations, including their clustering, and has figures per attack and model.

audit = result.audit(references=8)
strongest = audit.strongest()["attack"]
of_models = audit.attacks[(audit.attacks["scope"] == "model") & (audit.attacks["attack"] == strongest)]

# %%
# Each point is a model, with all clients that chose it.

examples = result.clients.groupby("cluster")["examples"].sum()
clients = result.clients.groupby("cluster").size()
figure, ax = plt.subplots(figsize=(6.4, 3.8))
for row in of_models.to_dict("records"):
    k = int(row["name"])
    ax.plot([examples[k]] * 2, [row["auc.low"], row["auc.high"]], color="#0072B2")
    ax.plot(examples[k], row["auc"], "o", color="#0072B2")
    ax.annotate(f"{clients[k]} clients", (examples[k], row["auc"]), (7, 4), textcoords="offset points")
ax.axhline(0.5, color="#777777", linestyle=":")
ax.set(
    xscale="log", xticks=sorted(examples), xticklabels=sorted(examples), xlim=(min(examples) / 1.2, max(examples) * 1.6)
)
ax.minorticks_off()
ax.set(
    xlabel="training examples of the model's clients",
    ylabel=f"AUC of {strongest} on the model's members\n(95 % interval)",
)
plt.show()

# %%
# Results for seed 0:

for row in of_models.sort_values("auc", ascending=False).to_dict("records"):
    k = int(row["name"])
    interval = f"{row['auc.low']:.3f} to {row['auc.high']:.3f}"
    print(f"model {k} of {clients[k]} clients: AUC {row['auc']:.3f} ({interval})")
one = audit.strongest()["auc"]
print(f"of all members together: {one:.3f}, which is nobody's exposure")
