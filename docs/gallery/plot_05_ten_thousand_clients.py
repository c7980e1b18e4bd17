"""Ten thousand clients
====================

Does IFCA find groups if only 1 % of clients take part in a round?

Ten thousand clients have ten examples each, and each round samples a hundred clients. Three in ten clients belong to a
group with different labels for the same inputs.
"""

import matplotlib.pyplot as plt
import numpy as np

import shoal

plt.style.use("shoal.figures")
CLIENTS, EXAMPLES, INPUTS = 10_000, 10, 20

# %%
# The data are synthetic: the label is the side of a plane on which an example lies, with a different plane per group.

draw = np.random.default_rng(0)
planes = draw.normal(size=(2, INPUTS))
names = np.array(["many", "few"])


def labelled(group: np.ndarray, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """So many examples of each owner, whose groups are given: inputs (n, examples, INPUTS) and labels (n, examples)."""
    x = draw.normal(size=(len(group), examples, INPUTS)).astype(np.float32)
    return x, (np.einsum("nei,ni->ne", x, planes[group]) > 0).astype(int)


group = (draw.random(CLIENTS) < 0.3).astype(int)
x, y = labelled(group, EXAMPLES)
test_group = np.arange(4_000) % 2
x_test, y_test = labelled(test_group, 1)
federation = shoal.Federation.from_tensors(
    list(zip(x, y, strict=True)),
    groups=names[group].tolist(),
    test=shoal.Examples(x_test[:, 0], y_test[:, 0], names[test_group].tolist()),
)
print(federation)

# %%
# Logistic regression trains for 60 rounds with ``participation=0.01``.

model = shoal.create_model("logistic", shoal.VectorShape(inputs=INPUTS, classes=2))
local = shoal.LocalSGD(epochs=2, batch_size=5, learning_rate=0.1)
results = {
    algorithm.title: shoal.simulate(federation, model, algorithm, local, rounds=60, participation=0.01)
    for algorithm in (shoal.FedAvg(), shoal.IFCA(clusters=2))
}

# %%
# The accuracy of a round is the mean over models, weighted by the number of clients that trained each model.

figure, ax = plt.subplots(figsize=(6.4, 3.8))
for (name, result), line, color in zip(results.items(), ("--", "-"), ("#E69F00", "#0072B2"), strict=True):
    rows = result.rounds.assign(right=result.rounds["accuracy"] * result.rounds["clients"])
    sums = rows.groupby("round")[["right", "clients"]].sum()
    ax.plot(sums.index, sums["right"] / sums["clients"], line, color=color, label=name)
ax.set(xlabel="round (100 of 10,000 clients in each)", ylabel="accuracy of the round's clients", ylim=(0.4, 1.02))
ax.legend(loc="center right")
plt.show()

# %%
# Results for seed 0:

seen = 1 - 0.99**60
print(
    f"after 60 rounds a client has taken part with probability {seen:.2f}; the others choose among the final models too"
)
for name, result in results.items():
    found = result.summary.overall
    moved = f"{found['migrated']:.0f} of 10,000 clients use a model that is mostly the other group's"
    print(f"{name}: accuracy {found['accuracy.overall']:.3f}; {moved}")
