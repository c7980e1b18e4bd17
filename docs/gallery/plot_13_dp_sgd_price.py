"""The price of DP-SGD
===================

How much accuracy do noise and clipping cost, and how much do they reduce exposure?

With DP-SGD (Abadi et al. 2016), a client clips each example's gradient and adds noise to the sum of gradients. An
accountant converts the noise into epsilon, a bound on what any attack can learn about an example. An audit measures the
success of known attacks.
"""

import matplotlib.pyplot as plt

import shoal

plt.style.use("shoal.figures")
NOISE = (0.0, 0.5, 1.0, 2.0, 4.0)

# %%
# Twenty clients of one group train one model, with 25 digits per client.

digits = shoal.load_dataset("digits")
partition = shoal.Partition(clients=20, examples_per_client=25, test_examples=700)
federation = shoal.partition_dataset(digits, partition, [shoal.Group("all", 1.0)])
model = shoal.create_model("mlp", shoal.Shape(channels=1, height=8, width=8, classes=10), hidden=32)
local = shoal.LocalSGD(epochs=3, batch_size=25, learning_rate=0.5)

# %%
# The noise multiplier is the noise's standard deviation in units of the clipping bound. Batches are Poisson samples, as
# the accountant assumes. Each audit trains four reference federations with the same noise, because an attack must know
# the defence. ``None`` is training without DP-SGD.

rows = []
for noise in (None, *NOISE):
    defenses = [] if noise is None else [shoal.DPSGD(max_grad_norm=1.0, noise_multiplier=noise, sampling="poisson")]
    result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=15, defenses=defenses)
    strongest = result.audit(references=4).strongest()
    found = result.summary.overall
    rows.append((noise, found["accuracy.overall"], found.get("epsilon"), strongest))

# %%

names = ["no DP-SGD", *(f"{noise:g}" for noise in NOISE)]
figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 5.4), sharex=True)
places = range(len(rows))
above.plot(places, [accuracy for _, accuracy, _, _ in rows], "o", color="#0072B2")
above.set(ylabel="accuracy", ylim=(0, 1))
for place, (_, accuracy, epsilon, _) in zip(places, rows, strict=True):
    said = "none" if epsilon is None else f"{epsilon:.0f}"
    above.annotate(f"epsilon\n{said}", (place, accuracy), (0, -14), textcoords="offset points", ha="center", va="top")
for place, (*_, strongest) in zip(places, rows, strict=True):
    below.plot([place, place], [strongest["auc.low"], strongest["auc.high"]], color="#D55E00")
    below.plot(place, strongest["auc"], "s", color="#D55E00")
below.axhline(0.5, color="#777777", linestyle=":")
below.set(ylabel="AUC of the strongest attack\n(95 % interval; dotted: chance)")
below.set(xticks=places, xticklabels=names, xlabel="noise multiplier")
plt.show()

# %%
# Results for seed 0, with the largest epsilon of all clients at delta = 1e-5:

for name, (_, accuracy, epsilon, strongest) in zip(names, rows, strict=True):
    bound = "no bound" if epsilon is None else f"epsilon {epsilon:.0f}"
    interval = f"{strongest['auc.low']:.3f} to {strongest['auc.high']:.3f}"
    print(f"{name:>9}: accuracy {accuracy:.3f}, {bound}, {strongest['attack']} AUC {strongest['auc']:.3f} ({interval})")

# %%
# An epsilon in the tens or hundreds guarantees almost nothing, even if known attacks find little. The guarantee covers
# all attacks, and the measurement covers only known attacks.
