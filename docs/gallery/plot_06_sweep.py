"""Several runs: mean and interval
===============================

Is IFCA more accurate than one model, beyond the variation between seeds?

Two algorithms train on five federations for each of three minority shares. Both algorithms use the same federation per
seed, so the example compares paired *differences*, which are independent of the difficulty of a federation.
"""

import matplotlib.pyplot as plt
import pandas as pd
from scipy import stats

import shoal

plt.style.use("shoal.figures")
SHARES, SEEDS = (0.1, 0.2, 0.4), range(5)

# %%

digits = shoal.load_dataset("digits")
partition = shoal.Partition(clients=50, examples_per_client=20, test_examples=390)
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=64)
local = shoal.LocalSGD(epochs=5, batch_size=10, learning_rate=0.1)
rows = []
for share in SHARES:
    groups = [shoal.Group("minority", share), shoal.Group("majority", 1 - share, rotation=(180, 180))]
    for seed in SEEDS:
        federation = shoal.partition_dataset(digits, partition, groups, stream=shoal.Stream(seed))
        for algorithm in (shoal.FedAvg(), shoal.IFCA(clusters=2)):
            result = shoal.simulate(federation, model, algorithm, local, rounds=20, seed=seed)
            accuracy = result.summary.by_group["minority"]["accuracy"]
            rows.append({"share": share, "seed": seed, "algorithm": algorithm.title, "accuracy": accuracy})
table = pd.DataFrame(rows).pivot_table(index=["share", "seed"], columns="algorithm", values="accuracy")
table["difference"] = table["IFCA"] - table["FedAvg"]
print(table.round(3))

# %%

by_share = table.groupby("share")
half = stats.t.ppf(0.975, len(SEEDS) - 1) * by_share.std() / len(SEEDS) ** 0.5
mean = by_share.mean()
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6))
for name, color, marker, shift in (("FedAvg", "#E69F00", "s", -0.4), ("IFCA", "#0072B2", "o", 0.4)):
    left.errorbar(100 * mean.index + shift, mean[name], half[name], fmt=marker, color=color, label=name)
right.errorbar(100 * mean.index, mean["difference"], half["difference"], fmt="D", color="#000000")
right.axhline(0, color="#777777", linestyle=":")
left.set(ylabel="accuracy of the minority's clients")
right.set(ylabel="IFCA less FedAvg, same seed")
for ax in (left, right):
    ax.set(xlabel="share of the minority (%)", xticks=[100 * share for share in SHARES])
left.legend(loc="lower right")
plt.show()

# %%
# Results for seeds 0 to 4. An interval that covers 0 is not decided:

for share in SHARES:
    low, high = (mean.loc[share, "difference"] + sign * half.loc[share, "difference"] for sign in (-1, 1))
    found = mean.loc[share, "difference"]
    decided = "undecided" if low <= 0 <= high else "IFCA is better" if low > 0 else "FedAvg is better"
    print(f"minority of {100 * share:.0f} %: {found:+.3f} ({low:+.3f} to {high:+.3f}), {decided}")
