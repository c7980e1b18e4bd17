"""The tables of `contraction.py` in Markdown, and the limits of the theorem in words."""

import math

import pandas as pd
from theorem import LAMBDA, L

NAMES = ("minority", "majority")


def value_range(values: pd.Series, digits: int = 3) -> str:
    """A number, or the range of several: ``0.731`` or ``0.731 to 0.758``."""
    low, high = f"{values.min():.{digits}g}", f"{values.max():.{digits}g}"
    return low if low == high else f"{low} to {high}"


def assumptions_table(assumptions: pd.DataFrame) -> str:
    """One row per quantity, over the seeds."""
    rows = []
    # Two quantities have the same name, so rows are matched by their order within a seed.
    for _, seeds in assumptions.groupby(assumptions.groupby("seed").cumcount()):
        first = seeds.iloc[0]
        needed = "" if seeds["needed"].isna().all() else value_range(seeds["needed"].astype(float))
        rows.append(
            {
                "quantity": first["quantity"],
                "value": value_range(seeds["value"]),
                "condition": f"{first['condition']} {needed}".strip(),
                "holds in": "" if seeds["holds"].isna().all() else f"{seeds['holds'].sum():g} of {len(seeds)} seeds",
            }
        )
    return _markdown(rows)


def mean_ratios(rows: pd.DataFrame) -> pd.Series:
    """Each seed's geometric mean of the factor per round, until the distance is within ten times of the last one.

    All rounds count where the first distance is that near.
    """
    ratios = {}
    for seed, run in rows.groupby("seed"):
        distances = run.sort_values("round")["distance"].to_numpy()
        near = distances < 10 * distances[-1]
        last = int(near.argmax()) if near.any() and not near[0] else len(distances) - 1
        ratios[seed] = (distances[last] / distances[0]) ** (1 / max(1, last))
    return pd.Series(ratios)


def contraction_table(rounds: pd.DataFrame) -> str:
    """Measured factors per round of the runs without a risk gap, the closed form and the bound."""
    total = int(rounds.groupby("cluster")["clients"].first().sum())
    rows = []
    without_gap = rounds[rounds["gap"] == 0]
    for (method, rate, cluster), run in without_gap.groupby(["method", "rate", "cluster"], sort=False):
        pull = rate * LAMBDA * (1 if method.endswith("model") else run["clients"].iloc[0] / total)
        rows.append(
            {
                "run": method,
                "cluster": NAMES[cluster],
                "rate": f"{rate:g}",
                "closed form": f"{abs(1 - pull):.3f}",
                "first round": value_range(run[run["round"] == 0]["ratio"]),
                "mean": "" if "hat" in method else value_range(mean_ratios(run)),
                "bound": f"{run['bound'].iloc[0]:.4f}",
                "most above the bound": f"{run['excess'].max():.2g}",
            }
        )
    return _markdown(rows)


def risk_table(risks: pd.DataFrame) -> str:
    """One row per beta and risk gap."""
    rows = []
    for (beta, gap), clusters in risks.groupby(["beta", "gap"]):
        minority, majority = (clusters[clusters["cluster"] == j] for j in (0, 1))
        left = f"{value_range(minority['left_first'])}, {value_range(minority['left_last'])}"
        rows.append(
            {
                "beta": f"{beta:g}",
                "risk gap": f"{gap:g}",
                "beta gap / alpha": "" if math.isclose(beta, 1) else f"{beta / (1 - beta) * gap:.2f}",
                "minority clients away at first, at last": f"{left} of {minority['clients'].iloc[0]}",
                "minority's distance": value_range(minority["distance"]),
                "majority's distance": value_range(majority["distance"]),
                "minimiser of F-hat from truth": value_range(minority["minimiser"]),
                "lambda, L of F-hat": f"{minority['lambda_hat'].min():.2f}, {minority['L_hat'].max():.2f}",
            }
        )
    return _markdown(rows)


def _markdown(rows: list[dict[str, str]]) -> str:
    return pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True)


LIMITS = f"""Where Theorem 4 does not describe Algorithm 1:

1. F-hat contains beta * l(theta), but clients descend f alone. As long as nobody changes cluster the risk has no
   effect on the models, and they go to the minimiser of F, not to that of F-hat.
2. Where the risk is constant, F-hat = alpha * F + const: lambda and L are alpha times those of F (lambda / L is the
   same), and the learning rate 1 / L of F-hat is 1 / alpha times that of F. With model averaging the distance then
   changes by |1 - 1 / alpha|, which is above 1 for beta > 1/2, although every assumption holds. Here each first
   round of it is further above the bound than the bound on epsilon_0 at delta = 0.5, in every seed; and that bound goes
   to 0 as B grows (with enough clients that p >= log(nB) / n still holds).
3. A risk gap is a threshold on the loss gap: client i leaves its cluster when
   alpha_i * (f_wrong - f_right) < beta_i * (l_right - l_wrong). The initialisation condition does not see it.
   Near the truths f_wrong - f_right is about Delta^2, so clusters last while beta * gap / alpha < Delta^2. Clients
   who descended F-hat would stay: at its minimisers, for a risk that is linear between them, the right model costs
   alpha * Delta^2 less whatever the gap. With the risk of these runs F-hat is not even convex near the truth where
   clients leave (lambda in the table), so Assumption 1 fails there too.
4. Once a cluster's clients have left, its model has nobody to move it and its distance does not shrink at all; the
   other model goes to the mean of the truths, weighted by clients, which is p * Delta from its own.
5. The p in the bound is that of gradient averaging, which divides by all clients: the factor is 1 - p_j lambda / L.
   Algorithm 1 averages models within the cluster, and then it is 1 - lambda / L, here {1 - LAMBDA / L:g}.
6. Assumptions 2 and 3 ask for variances bounded at every theta. Those of squared loss grow without bound; here they
   are bounded on the region that the iterates visit. The proof also takes fresh batches each round; these runs
   (and Algorithm 1) use the same data again.
7. The bound on epsilon_0 is loose: the distance that it leaves after many rounds, epsilon_0 * 8 L / (p lambda), is
   above Delta here, so the statement allows any distance. What is measured above the bound is some 1e-4."""
