"""A weak attack says little
=========================

How much does the measured exposure depend on the attack?

``Result.audit`` runs all attacks on the models of one training run. Some attacks use only the model's loss or
prediction. Other attacks compare the model with *reference* models, trained in the same way with half of the examples
replaced. A record is classified as a member if the attacked model fits the record better than the reference models.
"""

import matplotlib.pyplot as plt

import shoal

plt.style.use("shoal.figures")

# %%
# IFCA trains for 40 rounds. ``RedTeam(every=0)`` attacks only after training. The log warns that shadow models train on
# fewer examples than the larger cluster has.

digits = shoal.load_dataset("digits")
groups = [shoal.Group("minority", 0.2), shoal.Group("majority", 0.8, rotation=(180, 180))]
partition = shoal.Partition(clients=50, examples_per_client=20, shadow_examples=400, test_examples=390)
federation = shoal.partition_dataset(digits, partition, groups)
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
local = shoal.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)
result = shoal.simulate(federation, model, shoal.IFCA(clusters=2), local, rounds=40, red_team=shoal.RedTeam(every=0))

# %%
# The audit trains 16 reference federations and runs every attack on the same records; half are members. With a
# directory, the audit also writes a page, scores and figures.

audit = result.audit(references=16)
found = audit.attacks[audit.attacks["scope"] == "all"].set_index("attack")
shown = {
    "gap": "right or wrong",
    "posterior": "shadow models' posteriors",
    "loss": "loss below a threshold",
    "label-only": "label of changed images",
    "calibration": "calibrated loss (Watson et al.)",
    "lira": "LiRA (Carlini et al.)",
    "bavaria": "BaVarIA (Brannvall)",
    "rmia": "RMIA (Zarifzadeh et al.)",
}

# %%
# The area under the ROC curve is the probability that a member has a higher score than a non-member; 0.5 is chance.

figure, ax = plt.subplots(figsize=(7.2, 3.8))
for y, attack in enumerate(shown):
    row = found.loc[attack]
    references = attack in {"calibration", "lira", "bavaria", "rmia"}
    color, marker = ("#D55E00", "s") if references else ("#0072B2", "o")
    ax.plot([row["auc.low"], row["auc.high"]], [y, y], color=color)
    ax.plot(row["auc"], y, marker, color=color)
ax.plot([], [], "o-", color="#0072B2", label="the model alone")
ax.plot([], [], "s-", color="#D55E00", label="with 16 reference federations")
ax.axvline(0.5, color="#777777", linestyle=":")
ax.set(yticks=range(len(shown)), yticklabels=shown.values(), xlabel="AUC with its 95 % interval; dotted: chance")
ax.grid(visible=False, axis="y")
ax.legend(loc="lower right")
plt.show()

# %%
# Results for seed 0:

best, loss = audit.strongest(), found.loc["loss"]
print(
    f"{audit.members} members and {audit.non_members} others; an interval says how much other records would change it"
)
print(f"the loss threshold: AUC {loss['auc']:.3f} ({loss['auc.low']:.3f} to {loss['auc.high']:.3f})")
print(f"the strongest, {best['attack']}: AUC {best['auc']:.3f} ({best['auc.low']:.3f} to {best['auc.high']:.3f})")
print(f"above guessing by its whole interval: {', '.join(found.index[found['auc.low'] > 0.5])}")
