"""A coordinator closes the loop
=============================

Can the server keep clients within their limits during training?

Every client has a limit on its risk. After each risk estimate, each member of a model votes whether the risk exceeds
the client's limit. If too many members vote yes, a coordinator requests a stronger defence for the cluster's next
rounds. If few members vote yes, the coordinator weakens the defence. The defence is shorter training: at full strength,
a client skips four fifths of its local steps.
"""

from dataclasses import replace

import matplotlib.pyplot as plt

import shoal

plt.style.use("shoal.figures")

# %%
# Two groups of 6 and 18 clients have 12 digits per client. The limits on attack accuracy are drawn between 0.52 and
# 0.62, and chance is 0.5.

digits = shoal.load_dataset("digits")
groups = [shoal.Group("minority", 0.25), shoal.Group("majority", 0.75, rotation=(180, 180))]
partition = shoal.Partition(clients=24, examples_per_client=12, shadow_examples=600, test_examples=600)
preferences = shoal.draw_preferences(24, (0.52, 0.62), 0.5, shoal.Stream(0))
federation = shoal.partition_dataset(digits, partition, groups, preferences)

# %%
# The example trains with and without a coordinator. ``risk_reduction`` and ``accuracy_cost`` are prior guesses of the
# defence's effects. The estimator "audit" uses the simulator's knowledge of all members. A real server uses "federated"
# or "histogram", where clients send only counts.

model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
algorithm = shoal.OneShotStart(shoal.IFCA(clusters=2), shoal.LocalSGD(epochs=50, batch_size=6, learning_rate=0.1))
knob = shoal.Knob(shoal.ShorterTraining(0.2), risk_reduction=0.05, accuracy_cost=0.02)
coordinator = shoal.LimitController({"shorter": knob}, target=0.1, max_cost=0.05)
local = shoal.LocalSGD(epochs=5, batch_size=6, learning_rate=0.1)
red_team = shoal.RedTeam(every=4, estimator="audit", attack=shoal.LossThreshold())
alone = shoal.Simulation(federation, model, algorithm, local, rounds=40, red_team=red_team)
free, steered = (shoal.Run(each).train() for each in (alone, replace(alone, coordinator=coordinator)))

# %%
# Solid lines are with the coordinator, dashed lines without the coordinator.

figure, axes = plt.subplots(3, 1, figsize=(6.4, 7.0), sharex=True)
for k, (color, marker) in enumerate((("#0072B2", "o"), ("#E69F00", "s"))):
    for result, line in ((free, "--"), (steered, "-")):
        rows = result.rounds[result.rounds["cluster"] == k]
        style = {"color": color, "marker": marker, "markevery": slice(3, None, 4), "linestyle": line}
        axes[0].plot(rows["round"].iloc[3:], rows["risk"].iloc[3:], **style | {"markevery": slice(0, None, 4)})
        axes[2].plot(rows["round"], rows["accuracy"], **style)
        if "directive.shorter" in rows:
            label = f"model {k}, {rows['clients'].iloc[-1]} clients"
            axes[1].plot(rows["round"], rows["directive.shorter"], drawstyle="steps-post", label=label, **style)
axes[0].set(ylabel="estimated risk\n(accuracy of the attack)", ylim=(0.48, 0.63))
axes[0].axhline(0.5, color="#777777", linestyle=":")
axes[1].set(ylabel="strength asked for", ylim=(-0.05, 1.05))
axes[1].legend(loc="center", bbox_to_anchor=(0.45, 0.65))
axes[2].set(xlabel="round", ylabel="held-out accuracy", ylim=(0, 1))
plt.show()

# %%
# Results for seed 0 and 24 clients:

for name, result in (("without", free), ("with", steered)):
    last = result.rounds[result.rounds["round"] == result.rounds["round"].max()]
    risks = ", ".join(f"model {k}: {risk:.3f}" for k, risk in zip(last["cluster"], last["risk"], strict=True))
    over = sum((own["threshold"] < last["risk"].iloc[k]).sum() for k, own in result.clients.groupby("cluster"))
    accuracy = result.summary.overall["accuracy.overall"]
    print(f"{name} a coordinator: risk of {risks}; {over} clients over their limit; accuracy {accuracy:.3f}")
