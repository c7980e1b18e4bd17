"""IFCA and IFCA-MIR against Theorem 4 of the IFCA-MIR paper, on a small mixture where its assumptions can hold.

    python experiments/theory/contraction.py OUT [--seeds 0 1 2 3 4]

Writes contraction.csv, assumptions.csv, risk.csv, contraction.svg and contraction.pdf to OUT, and prints the tables.
It takes about a minute.
"""

import argparse
from pathlib import Path

import pandas as pd
import torch
from assignment_flips import flip_errors, risk_rows
from distance_figure import draw_figure
from ifca_rounds import Course, Rule, drawn, least_distance, play, synthetic_risk
from markdown_tables import assumptions_table, contraction_table, risk_table, words
from mixture import Mixture
from theorem import LAMBDA, Conditions, L, gradient_variance, loss_variance, sampled_variances, worst_hessians
from torch import Tensor

from shoal.core.atomic_files import write_text
from shoal.core.randomness import Stream

SIZES, BATCH, D, SD, ROUNDS = (15, 45), 2000, 20, 0.1, 40
RATE = 1 / L
BETAS, GAPS = (0.5, 0.6, 0.7, 0.8, 0.9), (0.1, 0.25, 0.5)
HAT = 0.8
"""The beta of the run at rate 1 / L of F-hat: L of F-hat is alpha times L of F where the risk is constant."""


def runs() -> list[tuple[str, Rule, float]]:
    """Every run of a seed: its name, its rule, its risk gap."""
    plain = [(f"ifca-{averaging}", Rule(averaging, 0.0, RATE), 0.0) for averaging in ("gradient", "model")]
    mir = [("ifca-mir", Rule("gradient", beta, RATE), gap) for beta in BETAS for gap in GAPS]
    hat = [("ifca-mir-hat", Rule(averaging, HAT, RATE / (1 - HAT)), 0.0) for averaging in ("gradient", "model")]
    return plain + mir + [(f"{name}-{rule.averaging}", rule, gap) for name, rule, gap in hat]


def course_rows(course: Course, mixture: Mixture, factor: float) -> list[dict]:
    """A row a round and cluster: how far the model is from its truth, and what the bound allows next."""
    rows = []
    for t in range(len(course.distances)):
        for j, apart in enumerate(course.distances[t].tolist()):
            mine = mixture.cluster == j
            ahead = float(course.distances[t + 1, j]) if t + 1 < len(course.distances) else float("nan")
            rows.append(
                {
                    "round": t,
                    "cluster": j,
                    "clients": int(mine.sum()),
                    "away": int((course.choices[t][mine] != j).sum()),
                    "distance": apart,
                    "ratio": ahead / apart,
                    "bound": factor,
                    "excess": ahead - factor * apart,
                }
            )
    return rows


def conditions(mixture: Mixture, start: Tensor, courses: list[Course]) -> tuple[Conditions, float]:
    """The theorem's quantities on the region that these courses visit, and that region's radius about any truth."""
    far = max(float(torch.cdist(course.models, mixture.truth).max()) for course in courses)
    clients, batch, d = mixture.x.shape
    return Conditions(
        clients=clients,
        batch=batch,
        clusters=len(mixture.truth),
        p=min(SIZES) / sum(SIZES),
        delta_truths=least_distance(mixture.truth),
        apart=float((start - mixture.truth).norm(dim=1).max()),
        loss_sd=loss_variance(far, SD) ** 0.5,
        gradient_sd=gradient_variance(far, SD, d) ** 0.5,
    ), far


def assumption_rows(mixture: Mixture, start: Tensor, courses: list[Course], stream: Stream) -> list[dict]:
    """Assumptions 1 to 4: each quantity, what it is compared with, and whether that holds."""
    c, far = conditions(mixture, start, courses)
    hessians = worst_hessians(mixture)
    loss, gradient = sampled_variances(far, SD, D, stream("variances").generator())
    first = float(start.norm(dim=1).max())
    (low, high), (pooled_low, pooled_high) = hessians["clients"], hessians["clusters"]
    rows: list[tuple[str, float, str, float | None, bool | None]] = [
        ("lambda of F (population)", LAMBDA, "> 0", None, True),
        ("L of F (population)", L, "", None, None),
        ("least eigenvalue of a client's Hessian", low, "> 0", None, low > 0),
        ("largest eigenvalue of a client's Hessian", high, "", None, None),
        ("least eigenvalue of a cluster's Hessian", pooled_low, "> 0", None, pooled_low > 0),
        ("largest eigenvalue of a cluster's Hessian", pooled_high, "", None, None),
        ("largest distance of an iterate from a truth", far, "", None, None),
        ("variance of the loss there, eta^2", c.loss_sd**2, "", None, None),
        ("the same by Monte Carlo", loss, "", None, None),
        ("variance of the gradient there, sigma^2", c.gradient_sd**2, "", None, None),
        ("the same by Monte Carlo", gradient, "", None, None),
        ("largest norm of a first model", first, "<=", 1.0, first <= 1 + 1e-12),
        ("Delta", c.delta_truths, ">= O~", c.delta_needed, c.delta_truths >= c.delta_needed),
        ("initial distance", c.apart, "<= Delta / 2", c.delta_truths / 2, c.slack > 0),
        ("largest alpha (slack of the start)", c.slack, "> 0", None, c.slack > 0),
        ("B, examples of a client", c.batch, ">=", c.batch_needed, c.batch >= c.batch_needed),
        ("p, share of the smallest cluster", c.p, ">=", c.p_needed, c.p >= c.p_needed),
        ("bound 1 - p lambda / (8 L)", c.factor, "", None, None),
        ("bound on epsilon_0 at delta = 0.1", c.epsilon0(0.1), "", None, None),
        ("bound on epsilon_0 at delta = 0.5", c.epsilon0(0.5), "", None, None),
        ("distance that bound leaves at delta = 0.5", c.epsilon0(0.5) / (1 - c.factor), "", None, None),
    ]
    keys = ("quantity", "value", "condition", "needed", "holds")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def study(seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """One seed's courses, assumptions and risks."""
    stream = Stream(seed)("theory", "contraction")
    mixture, start = drawn(SIZES, BATCH, D, SD, stream)
    played = [
        (name, rule, gap, play(mixture, start, rule, synthetic_risk(mixture, gap), ROUNDS))
        for name, rule, gap in runs()
    ]
    plain = [course for name, _, _, course in played if name.startswith("ifca-") and "mir" not in name]
    factor = conditions(mixture, start, plain)[0].factor
    rows = [
        {"seed": seed, "method": name, "beta": rule.beta, "gap": gap, "rate": rule.rate} | row
        for name, rule, gap, course in played
        for row in course_rows(course, mixture, factor)
    ]
    assumptions = [{"seed": seed} | row for row in assumption_rows(mixture, start, plain, stream)]
    mir = [(rule.beta, gap, course) for name, rule, gap, course in played if name == "ifca-mir"]
    risks = [{"seed": seed} | row for row in risk_rows(mixture, mir, stream("balls"))]
    print(f"seed {seed}: the law of leaving holds to {flip_errors(mixture, start, BETAS):.1e} of the gap", flush=True)
    return pd.DataFrame(rows), pd.DataFrame(assumptions), pd.DataFrame(risks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    done = [study(seed) for seed in given.seeds]
    courses, assumptions, risks = (pd.concat(each, ignore_index=True) for each in zip(*done, strict=True))
    for name, table in (("contraction", courses), ("assumptions", assumptions), ("risk", risks)):
        write_text(given.out / f"{name}.csv", table.to_csv(index=False, float_format="%.10g", lineterminator="\n"))
    draw_figure(courses, given.out)
    print(f"\nAssumptions\n\n{assumptions_table(assumptions)}\n\nContraction a round\n\n{contraction_table(courses)}")
    print(f"\nWeighing the risk\n\n{risk_table(risks)}\n\n{words()}")


if __name__ == "__main__":
    main()
