"""What `contraction.py` prints: its tables in Markdown, and where the theorem does not apply."""

import math

import pandas as pd
from theorem import LAMBDA, L

NAMES = ("minority", "majority")


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def span(values: pd.Series, digits: int = 3) -> str:
    """A number, or the range of several: ``0.731`` or ``0.731 to 0.758``."""
    low, high = f"{values.min():.{digits}g}", f"{values.max():.{digits}g}"
    return low if low == high else f"{low} to {high}"


def assumptions_table(given: pd.DataFrame) -> str:
    """A row a quantity, over the seeds."""
    rows = []
    order = given.index[given["seed"] == given["seed"].iloc[0]]
    place = given.groupby("seed").cumcount()
    for i in range(len(order)):
        mine = given[place == i]
        first = mine.iloc[0]
        needed = "" if mine["needed"].isna().all() else span(mine["needed"].astype(float))
        holds = "" if mine["holds"].isna().all() else f"{int(mine['holds'].sum())} of {len(mine)} seeds"
        rows.append([first["quantity"], span(mine["value"]), f"{first['condition']} {needed}".strip(), holds])
    return markdown(["quantity", "value", "condition", "holds in"], rows)


def ratios(given: pd.DataFrame) -> pd.Series:
    """Each run's geometric mean ratio from its first round, while ten times as far away as it ends.

    A course that never comes so near counts whole.
    """
    found = {}
    for seed, mine in given.groupby("seed"):
        course = mine.sort_values("round")["distance"].to_numpy()
        near = course < 10 * course[-1]
        last = int(near.argmax()) if near.any() and not near[0] else len(course) - 1
        found[seed] = (course[last] / course[0]) ** (1 / max(1, last))
    return pd.Series(found)


def contraction_table(courses: pd.DataFrame) -> str:
    """Measured factors of the runs without a risk gap, beside the closed form and the bound."""
    plain = courses[courses["gap"] == 0]
    total = int(courses.groupby("cluster")["clients"].first().sum())
    rows = []
    for (method, rate, cluster), mine in plain.groupby(["method", "rate", "cluster"], sort=False):
        pull = rate * LAMBDA * (1 if method.endswith("model") else mine["clients"].iloc[0] / total)
        first = mine[mine["round"] == 0].set_index("seed")["ratio"]
        rows.append(
            [
                method,
                NAMES[cluster],
                f"{rate:g}",
                f"{abs(1 - pull):.3f}",
                span(first),
                "" if "hat" in method else span(ratios(mine)),
                f"{mine['bound'].iloc[0]:.4f}",
                f"{mine['excess'].max():.2g}",
            ]
        )
    head = ["run", "cluster", "rate", "closed form", "first round", "mean", "bound", "most above the bound"]
    return markdown(head, rows)


def risk_table(risks: pd.DataFrame) -> str:
    """A row a weight and risk gap."""
    rows = []
    for (beta, gap), mine in risks.groupby(["beta", "gap"]):
        small, large = (mine[mine["cluster"] == j] for j in (0, 1))
        clients = f"{span(small['left_first'])}, {span(small['left_last'])} of {small['clients'].iloc[0]}"
        leaves = "" if math.isclose(beta, 1) else f"{beta / (1 - beta) * gap:.2f}"
        convex = f"{small['lambda_hat'].min():.2f}, {small['L_hat'].max():.2f}"
        spans = [span(column) for column in (small["distance"], large["distance"], small["minimiser"])]
        rows.append([f"{beta:g}", f"{gap:g}", leaves, clients, *spans, convex])
    head = ["beta", "risk gap", "beta gap / alpha", "minority clients away at first, at last"]
    head += ["minority's distance", "majority's distance", "minimiser of F-hat from truth", "lambda, L of F-hat"]
    return markdown(head, rows)


def words() -> str:
    """Where the theorem does not apply to Algorithm 1."""
    return f"""Where Theorem 4 does not describe Algorithm 1:

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
