"""Writes patients.csv: 40 clinics with 60 rows each, in two areas where the same values mean opposite outcomes."""

import numpy as np
import pandas as pd

draw = np.random.default_rng(0)
rows = pd.DataFrame(draw.normal(size=(2400, 20)).round(3), columns=[f"value {i}" for i in range(20)])
rows["clinic"] = [f"clinic {i % 40:02d}" for i in range(2400)]
rows["area"] = np.where(rows["clinic"] < "clinic 12", "north", "south")
cause = rows[["value 0", "value 1", "value 2", "value 3"]].sum(axis=1)
cause = np.where(rows["area"] == "north", cause, -cause)  # opposite in the two areas
rows["outcome"] = np.where(cause + draw.normal(size=2400) > 0, "ill", "well")
rows.to_csv("patients.csv", index=False)
