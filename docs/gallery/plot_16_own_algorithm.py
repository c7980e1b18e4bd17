"""Your own algorithm
==================

Does IFCA find more groups if clients sometimes try the other model?

An algorithm is a frozen dataclass with five methods. This algorithm adds exploration to IFCA: in the first rounds,
clients choose models at random, with probabilities that decrease with the loss. A falling temperature reduces the
randomness until clients choose as in IFCA.
"""

from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import torch

import shoal
from shoal.engine import Aggregate, Cohort, DeployedModels, Engine, RoundPlan, State

plt.style.use("shoal.figures")
SEEDS = range(5)

# %%
# ``plan`` assigns models to clients before training, and ``server_update`` computes the next models from the averages.
# All changes are in `State`, and random draws use the cohort's stream, so runs are reproducible. The class delegates
# everything else to ``shoal.IFCA``.


@dataclass(frozen=True)
class ExploringIFCA:
    """A client chooses model k with probability proportional to ``exp(-loss_k / temperature_t)``.

    Args:
        clusters: K.
        temperature: in the first round, in nats.
        cooling: its factor from one round to the next.
    """

    clusters: int = 2
    temperature: float = 0.3
    cooling: float = 0.7

    def check(self, local: shoal.LocalSGD, risk_period: int) -> None:
        """Any local training will do."""

    def init(self, engine: Engine, federation: shoal.Federation, local: shoal.LocalSGD, stream: shoal.Stream) -> State:
        """K random models."""
        return shoal.IFCA(self.clusters).init(engine, federation, local, stream)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The largest of ``-loss / temperature`` plus Gumbel noise is a draw from these probabilities."""
        losses = cohort.losses(state.models)
        uniform = torch.rand(losses.shape, generator=cohort.stream("explore").generator(), dtype=losses.dtype)
        gumbel = -(-uniform.clamp(1e-12, 1 - 1e-12).log()).log()
        temperature = self.temperature * self.cooling**state.round
        choice = (temperature * gumbel - losses).argmax(dim=1)
        return shoal.IFCA(self.clusters).plan_of(choice, losses, state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The averages are the new models."""
        return replace(state, models=aggregate.models)

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        """In the end each client uses the model of the least loss."""
        return shoal.IFCA(self.clusters).deployed_models(state, cohort)


# %%
# The comparison with IFCA uses five federations with overlapping groups.

digits = shoal.load_dataset("digits")
groups = [shoal.Group("minority", 0.3, rotation=(0, 25)), shoal.Group("majority", 0.7, rotation=(25, 50))]
partition = shoal.Partition(clients=50, examples_per_client=20, test_examples=390)
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
local = shoal.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)
algorithms = {"IFCA": shoal.IFCA(2), "exploring IFCA": ExploringIFCA()}
agreement = {name: [] for name in algorithms}
for seed in SEEDS:
    federation = shoal.partition_dataset(digits, partition, groups, stream=shoal.Stream(seed))
    for name, algorithm in algorithms.items():
        result = shoal.simulate(federation, model, algorithm, local, rounds=20, seed=seed)
        agreement[name].append(result.summary.overall["adjusted_rand_index"])

# %%
# Each line is one federation.

figure, ax = plt.subplots(figsize=(5.2, 3.8))
for seed, (before, after) in zip(SEEDS, zip(*agreement.values(), strict=True), strict=True):
    ax.plot([0, 1], [before, after], "-", marker="os^Dv"[seed], label=f"seed {seed}")
ax.set(xticks=[0, 1], xticklabels=algorithms, xlim=(-0.2, 1.2), ylim=(-0.08, 1.04))
ax.set(ylabel="agreement with the groups\n(adjusted Rand index)")
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
# Results for seeds 0 to 4:

differences = torch.tensor(agreement["exploring IFCA"]) - torch.tensor(agreement["IFCA"])
for name, found in agreement.items():
    print(f"{name}: agreement {torch.tensor(found).mean():.2f} on average")
print(f"better with exploration for {int((differences > 0.01).sum())} of {len(SEEDS)}, "
      f"worse for {int((differences < -0.01).sum())}")  # fmt: skip
