"""Writes tumours.csv: scikit-learn's breast cancer data, dealt out to 18 clinics, five of them with an old device."""

import numpy as np
from sklearn.datasets import load_breast_cancer

data = load_breast_cancer(as_frame=True)
order = np.random.default_rng(1).permutation(len(data.data))
rows = data.data.iloc[order].reset_index(drop=True)
clinic = np.arange(len(rows)) % 18
old, measures = clinic < 5, list(rows)
# The old device counts from the other end of its scale.
rows.loc[old, measures] = rows[measures].max() - rows.loc[old, measures]
rows["diagnosis"] = np.where(data.target.to_numpy()[order] == 0, "malignant", "benign")
rows["clinic"] = [f"clinic {i:02d}" for i in clinic]
rows["device"] = np.where(old, "old", "new")
rows.to_csv("tumours.csv", index=False)
