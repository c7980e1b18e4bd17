"""Non-members decide the figure
=============================

Which non-members should a membership attack use?

Non-members may come from the member's group or from the whole population. A model for upright digits predicts
upside-down digits badly, whether or not the model trained on the digits. With non-members from the whole population, a
"membership" attack also recognises groups, so the attack's accuracy rises without higher exposure.
"""

import matplotlib.pyplot as plt

import shoal

plt.style.use("shoal.figures")

# %%
# IFCA separates the two groups. The final attack classifies records below a loss threshold as members, and shadow
# models of the server set the threshold.

digits = shoal.load_dataset("digits")
groups = [shoal.Group("minority", 0.3), shoal.Group("majority", 0.7, rotation=(180, 180))]
partition = shoal.Partition(clients=30, examples_per_client=20, shadow_examples=840, test_examples=350)
federation = shoal.partition_dataset(digits, partition, groups)
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
result = shoal.simulate(
    federation,
    model,
    shoal.IFCA(clusters=2),
    shoal.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1),
    rounds=40,
    red_team=shoal.RedTeam(every=0, attack=shoal.LossThreshold()),
)

# %%
# ``result.roc`` has the attack's ROC curve per group, against non-members of the same "group" and of the whole
# "population".

figure, axes = plt.subplots(1, 2, figsize=(8.4, 4.2), sharey=True)
for ax, group in zip(axes, federation.groups, strict=True):
    metrics = result.summary.by_group[group]
    for choice, key, color, line in (
        ("group", "mia_auc", "#0072B2", "-"),
        ("population", "mia_population_auc", "#D55E00", "--"),
    ):
        curve = result.roc[(result.roc["group"] == group) & (result.roc["non_members"] == choice)]
        whose = "its own group" if choice == "group" else "the population"
        ax.plot(curve["fpr"], curve["tpr"], line, color=color, label=f"{whose}: AUC {metrics[key]:.3f}")
    ax.plot([0, 1], [0, 1], ":", color="#777777")
    ax.set(xlabel="non-members called members", title=f"members: the {group}", aspect="equal")
    ax.legend(title="non-members are of", loc="lower right")
axes[0].set(ylabel="members called members")
plt.show()

# %%
# Results for seed 0:

agreement = result.summary.overall["adjusted_rand_index"]
print(f"agreement of models and groups (adjusted Rand index): {agreement:.2f}")
for group, metrics in result.summary.by_group.items():
    same, population = metrics["mia_auc"], metrics["mia_population_auc"]
    print(f"{group}: AUC {same:.3f} against its own group, {population:.3f} against the population")
print("The models, the members and the attack are the same; the difference measures groups, not membership.")
