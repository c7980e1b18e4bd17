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
from ifca_rounds import Method, Trajectory, draw_clusters, least_distance, run_rounds, synthetic_risk
from markdown_tables import LIMITS, assumptions_table, contraction_table, risk_table
from mixture import Mixture
from theorem import LAMBDA, Conditions, L, gradient_variance, hessian_ranges, loss_variance, sampled_variances
from torch import Tensor

from shoal.core.atomic_files import write_text
from shoal.core.randomness import Stream

SIZES, BATCH, D, SD, ROUNDS = (15, 45), 2000, 20, 0.1, 40
RATE = 1 / L
BETAS, GAPS = (0.5, 0.6, 0.7, 0.8, 0.9), (0.1, 0.25, 0.5)
BETA_HAT = 0.8
"""The beta of the runs at rate 1 / L of F-hat: L of F-hat is alpha times L of F where the risk is constant."""


def methods() -> list[tuple[str, Method, float]]:
    """Every run of a seed: its name, its method, its risk gap."""
    averagings = ("gradient", "model")
    ifca = [(f"ifca-{averaging}", Method(averaging, 0.0, RATE), 0.0) for averaging in averagings]
    mir = [("ifca-mir", Method("gradient", beta, RATE), gap) for beta in BETAS for gap in GAPS]
    rate_hat = RATE / (1 - BETA_HAT)
    mir_hat = [(f"ifca-mir-hat-{averaging}", Method(averaging, BETA_HAT, rate_hat), 0.0) for averaging in averagings]
    return ifca + mir + mir_hat


def trajectory_rows(trajectory: Trajectory, mixture: Mixture, factor: float) -> list[dict]:
    """One row per round and cluster: the model's distance from the true model, and its change against the bound."""
    rows = []
    for t in range(len(trajectory.distances)):
        for j, distance in enumerate(trajectory.distances[t].tolist()):
            members = mixture.cluster == j
            following = float(trajectory.distances[t + 1, j]) if t + 1 < len(trajectory.distances) else float("nan")
            rows.append(
                {
                    "round": t,
                    "cluster": j,
                    "clients": int(members.sum()),
                    "away": int((trajectory.assignments[t][members] != j).sum()),
                    "distance": distance,
                    "ratio": following / distance,
                    "bound": factor,
                    "excess": following - factor * distance,
                }
            )
    return rows


def conditions(mixture: Mixture, start: Tensor, trajectories: list[Trajectory]) -> tuple[Conditions, float]:
    """The theorem's quantities on the region that these runs visit, and its radius about the true models."""
    radius = max(float(torch.cdist(trajectory.models, mixture.truth).max()) for trajectory in trajectories)
    clients, batch, d = mixture.x.shape
    return Conditions(
        clients=clients,
        batch=batch,
        clusters=len(mixture.truth),
        p=min(SIZES) / sum(SIZES),
        delta_truths=least_distance(mixture.truth),
        initial_distance=float((start - mixture.truth).norm(dim=1).max()),
        loss_sd=loss_variance(radius, SD) ** 0.5,
        gradient_sd=gradient_variance(radius, SD, d) ** 0.5,
    ), radius


def assumption_rows(mixture: Mixture, start: Tensor, trajectories: list[Trajectory], stream: Stream) -> list[dict]:
    """Assumptions 1 to 4, one row per quantity: its value, its condition, and whether that holds."""
    c, radius = conditions(mixture, start, trajectories)
    hessians = hessian_ranges(mixture)
    loss, gradient = sampled_variances(radius, SD, D, stream("variances").generator())
    largest_norm = float(start.norm(dim=1).max())
    (low, high), (pooled_low, pooled_high) = hessians["clients"], hessians["clusters"]
    rows: list[tuple[str, float, str, float | None, bool | None]] = [
        ("lambda of F (population)", LAMBDA, "> 0", None, True),
        ("L of F (population)", L, "", None, None),
        ("least eigenvalue of a client's Hessian", low, "> 0", None, low > 0),
        ("largest eigenvalue of a client's Hessian", high, "", None, None),
        ("least eigenvalue of a cluster's Hessian", pooled_low, "> 0", None, pooled_low > 0),
        ("largest eigenvalue of a cluster's Hessian", pooled_high, "", None, None),
        ("largest distance of an iterate from a truth", radius, "", None, None),
        ("variance of the loss there, eta^2", c.loss_sd**2, "", None, None),
        ("the same by Monte Carlo", loss, "", None, None),
        ("variance of the gradient there, sigma^2", c.gradient_sd**2, "", None, None),
        ("the same by Monte Carlo", gradient, "", None, None),
        ("largest norm of a first model", largest_norm, "<=", 1.0, largest_norm <= 1 + 1e-12),
        ("Delta", c.delta_truths, ">= O~", c.delta_needed, c.delta_truths >= c.delta_needed),
        ("initial distance", c.initial_distance, "<= Delta / 2", c.delta_truths / 2, c.slack > 0),
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


def run_seed(seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """One seed's distances by round, assumptions and risks."""
    stream = Stream(seed)("theory", "contraction")
    mixture, start = draw_clusters(SIZES, BATCH, D, SD, stream)
    runs = [
        (name, method, gap, run_rounds(mixture, start, method, synthetic_risk(mixture, gap), ROUNDS))
        for name, method, gap in methods()
    ]
    ifca = [trajectory for name, _, _, trajectory in runs if "mir" not in name]
    factor = conditions(mixture, start, ifca)[0].factor
    rows = [
        {"seed": seed, "method": name, "beta": method.beta, "gap": gap, "rate": method.rate} | row
        for name, method, gap, trajectory in runs
        for row in trajectory_rows(trajectory, mixture, factor)
    ]
    assumptions = [{"seed": seed} | row for row in assumption_rows(mixture, start, ifca, stream)]
    mir = [(method.beta, gap, trajectory) for name, method, gap, trajectory in runs if name == "ifca-mir"]
    risks = [{"seed": seed} | row for row in risk_rows(mixture, mir, stream("balls"))]
    print(
        f"seed {seed}: the formula of the flip gap holds to {flip_errors(mixture, start, BETAS):.1e} of the gap",
        flush=True,
    )
    return pd.DataFrame(rows), pd.DataFrame(assumptions), pd.DataFrame(risks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    seeds = [run_seed(seed) for seed in arguments.seeds]
    rounds, assumptions, risks = (pd.concat(each, ignore_index=True) for each in zip(*seeds, strict=True))
    for name, table in (("contraction", rounds), ("assumptions", assumptions), ("risk", risks)):
        write_text(arguments.out / f"{name}.csv", table.to_csv(index=False, float_format="%.10g", lineterminator="\n"))
    draw_figure(rounds, arguments.out)
    print(f"\nAssumptions\n\n{assumptions_table(assumptions)}")
    print(f"\nContraction per round\n\n{contraction_table(rounds)}")
    print(f"\nWeighing the risk\n\n{risk_table(risks)}\n\n{LIMITS}")


if __name__ == "__main__":
    main()
