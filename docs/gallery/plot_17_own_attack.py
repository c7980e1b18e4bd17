"""Your own attack
===============

Is your own score a better membership attack than the loss?

An attack is a frozen dataclass. The red team fits the attack on outputs of shadow models, whose members the server
knows, and then scores examples with the attack.
"""

from dataclasses import dataclass
from typing import ClassVar

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

import shoal
from shoal.attacks import Needs, Query, Records

plt.style.use("shoal.figures")

# %%
# The score is the margin of the true class over the best other class.


def margin(outputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """The output of the true class minus the largest other: outputs (M, C), labels (M,) -> (M,)."""
    own = outputs.gather(1, labels[:, None])[:, 0]
    others = outputs.scatter(1, labels[:, None], -np.inf).max(dim=1).values
    return (own - others).double().numpy()


@dataclass(frozen=True)
class MarginAttack:
    """Calls an example a member when its margin is above the median of the shadow models' members."""

    needs: ClassVar[Needs] = "records"
    needs_classes: ClassVar[bool] = True
    title: ClassVar[str] = "margin"

    def fit(self, records: Records, stream: shoal.Stream) -> "FittedMargin":
        """Set the threshold on the members of ``records``."""
        return FittedMargin(float(np.median(margin(records.outputs, records.labels)[records.member.numpy()])))


@dataclass(frozen=True)
class FittedMargin:
    """Scores by the margin."""

    threshold: float

    def score(self, query: Query) -> NDArray[np.float64]:
        """Scores (M,), higher for members."""
        return margin(query.outputs, query.labels)


# %%
# The three runs use the same federation and different attacks. Attacks do not influence training.

digits = shoal.load_dataset("digits")
partition = shoal.Partition(clients=20, examples_per_client=20, shadow_examples=800, test_examples=500)
federation = shoal.partition_dataset(digits, partition, [shoal.Group("all", 1.0, rotation=(-40, 40))])
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
local = shoal.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)
attacks = {"margin": MarginAttack(), "loss": shoal.LossThreshold(), "right or wrong": shoal.Gap()}
results = {
    name: shoal.simulate(
        federation, model, shoal.FedAvg(), local, rounds=60, red_team=shoal.RedTeam(every=0, attack=attack)
    )
    for name, attack in attacks.items()
}
weights = [result.models[0] for result in results.values()]
assert all((first[key] == weights[0][key]).all() for first in weights for key in first)

# %%

figure, ax = plt.subplots(figsize=(5.2, 4.8))
for (name, result), color, line in zip(
    results.items(), ("#D55E00", "#0072B2", "#009E73"), ("-", "--", "-."), strict=True
):
    curve, found = result.roc[result.roc["non_members"] == "group"], result.summary.by_group["all"]
    ax.plot(curve["fpr"], curve["tpr"], line, color=color, label=f"{name}: AUC {found['mia_auc']:.3f}")
ax.plot([0, 1], [0, 1], ":", color="#777777", label="chance")
ax.set(xlabel="non-members called members", ylabel="members called members", aspect="equal")
ax.legend(loc="lower right")
plt.show()

# %%
# Results for seed 0:

for name, result in results.items():
    found = result.summary.by_group["all"]
    print(f"{name}: AUC {found['mia_auc']:.3f}, balanced accuracy at its threshold {found['mia']:.3f}")
members, others = (result.summary.by_group["all"][key] for key in ("members", "non_members"))
print(f"{members:.0f} members and {others:.0f} others, so each AUC has a standard error of about 0.02")
