"""An audit of your own scores
===========================

How can you audit a model that was not trained with Shoal?

An audit needs only a table of scores, with a row per record. ``score`` is the logit of the model's probability for the
true class, and ``member`` states whether the model trained on the record. The strong attacks also need both columns for
reference models, trained in the same way on other samples of the records. This example trains all models with
scikit-learn.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import shoal

plt.style.use("shoal.figures")
REFERENCES = 12

# %%
# The audited model and twelve references are each trained on half of 600 digits. The two references of a pair train on
# opposite halves, so each record is a member of six references.

x, y = load_digits(return_X_y=True)
x, y = x[:600] / 16, y[:600]
draw = np.random.default_rng(0)
halves = [draw.permutation(len(y)) < len(y) // 2 for _ in range(1 + REFERENCES // 2)]
members = np.array([halves[0], *(half for first in halves[1:] for half in (first, ~first))])
scores = np.empty(members.shape)
for i, half in enumerate(members):
    classifier = LogisticRegression(C=10, max_iter=2000).fit(x[half], y[half])
    p = classifier.predict_proba(x)[np.arange(len(y)), y].clip(1e-9, 1 - 1e-9)
    scores[i] = np.log(p) - np.log(1 - p)

# %%
# The score file. Clients and groups can be any partition of the records, such as digits below five and other digits.

table = pd.DataFrame({"record": np.arange(len(y)), "client": y, "group": np.where(y < 5, "0 to 4", "5 to 9")})
table["member"], table["score"] = members[0].astype(int), scores[0]
references = {f"score_ref_{i}": scores[1 + i] for i in range(REFERENCES)}
references |= {f"member_ref_{i}": members[1 + i].astype(int) for i in range(REFERENCES)}
table = pd.concat([table, pd.DataFrame(references)], axis=1)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "scores.csv"
    table.to_csv(path, index=False)
    found = shoal.audit_scores(path)
    print(sorted(each.name for each in Path(folder).iterdir()))

# %%
# ``shoal audit --scores scores.csv`` runs the same audit and also writes a page. References correct for the difficulty
# of a record. On the diagonal, the audited model's score equals the mean score of models that never trained on the
# record.

expected = np.average(scores[1:], axis=0, weights=~members[1:])
figure, ax = plt.subplots(figsize=(5.6, 5.0))
for value, name, color, marker in ((False, "not a member", "#56B4E9", "s"), (True, "member", "#D55E00", "o")):
    of = members[0] == value
    ax.plot(expected[of], scores[0, of], marker, color=color, markersize=3.5, alpha=0.7, label=name)
ax.axline((0, 0), slope=1, color="#777777", linestyle=":")
ax.set(xlabel="mean score by references that did not train on it (logit)", ylabel="score by the audited model (logit)")
ax.legend(loc="upper left")
plt.show()

# %%
# Results for 600 records:

attacks = found.audit.attacks[found.audit.attacks["scope"] == "all"].set_index("attack")
for name in ("loss", "lira", "rmia"):
    row = attacks.loc[name]
    print(f"{name}: AUC {row['auc']:.3f} ({row['auc.low']:.3f} to {row['auc.high']:.3f})")
print(f"the strongest attack: {found.flat['strongest.all']}")
above = [float((scores[0] > expected)[members[0] == kind].mean()) for kind in (True, False)]
print(f"above the diagonal: {100 * above[0]:.0f} % of the members, {100 * above[1]:.0f} % of the others")
