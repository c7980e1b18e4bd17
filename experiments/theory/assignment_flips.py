"""The clients that leave their cluster because of the risk, and the distance of F-hat's minimiser from the truth."""

import torch
from ifca_rounds import Risk, Trajectory, flip_gap, least_distance, synthetic_risk
from mixture import Mixture
from torch import Tensor

from shoal.core.randomness import Stream


def flip_errors(mixture: Mixture, models: Tensor, betas: tuple[float, ...]) -> float:
    """Largest relative error of the formula for the risk gap at which a client of cluster 0 leaves."""
    clients = torch.nonzero(mixture.cluster == 0).flatten().tolist()
    gaps = [flip_gap(mixture, models, client, beta) for client in clients for beta in betas]
    return max(abs(bisected - formula) / formula for formula, bisected in gaps)


def population_loss(truth: Tensor, risk: Risk, beta: float) -> Risk:
    """F-hat of a cluster without its constant: alpha |theta - theta*|^2 + beta l(theta)."""
    return lambda models: (1 - beta) * (models - truth).square().sum(dim=-1) + beta * risk(models)


def minimiser(loss: Risk, start: Tensor) -> Tensor:
    """The local minimiser of ``loss`` that L-BFGS finds from ``start`` (d,)."""
    theta = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [theta], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(theta)
        value.backward()
        return value.item()

    optimizer.step(closure)
    return theta.detach()


def hessian_range(loss: Risk, centre: Tensor, radius: float, stream: Stream) -> tuple[float, float]:
    """Least and largest eigenvalue of the Hessian at ``centre`` (d,) and at 200 points of the ball about it."""
    direction = torch.randn(200, len(centre), generator=stream.generator(), dtype=torch.float64)
    lengths = radius * torch.rand(200, 1, generator=stream("lengths").generator(), dtype=torch.float64)
    points = torch.cat([centre[None], centre + lengths * direction / direction.norm(dim=1, keepdim=True)])
    values = torch.linalg.eigvalsh(torch.func.vmap(torch.func.jacrev(torch.func.grad(loss)))(points))
    return float(values.min()), float(values.max())


def risk_rows(mixture: Mixture, runs: list[tuple[float, float, Trajectory]], stream: Stream) -> list[dict]:
    """One row per (beta, gap, cluster): who left at first and in the end, where the model ended, F-hat's convexity."""
    delta, rows = least_distance(mixture.truth), []
    share = torch.bincount(mixture.cluster).double() / len(mixture.cluster)
    for beta, gap, trajectory in runs:
        risk = synthetic_risk(mixture, gap)
        for j, truth in enumerate(mixture.truth):
            members, loss = mixture.cluster == j, population_loss(truth, risk, beta)
            low, high = hessian_range(loss, truth, delta / 4, stream("ball", j))
            rows.append(
                {
                    "beta": beta,
                    "gap": gap,
                    "cluster": j,
                    "clients": int(members.sum()),
                    "left_first": int((trajectory.assignments[0][members] != j).sum()),
                    "left_last": int((trajectory.assignments[-1][members] != j).sum()),
                    "distance": float(trajectory.distances[-1, j]),
                    "pooled": float(1 - share[j]) * delta,
                    "minimiser": float((minimiser(loss, truth) - truth).norm()),
                    "lambda_hat": low,
                    "L_hat": high,
                }
            )
    return rows
