"""Where clients leave their cluster for the risk's sake, and how far the minimiser of F-hat is from the truth."""

import torch
from ifca_rounds import Course, Risk, flip_gap, least_distance, synthetic_risk
from mixture import Mixture
from torch import Tensor

from shoal.core.randomness import Stream


def flip_errors(mixture: Mixture, models: Tensor, betas: tuple[float, ...]) -> float:
    """Largest relative difference between the law's risk gap and the one at which a client of cluster 0 leaves."""
    clients = torch.nonzero(mixture.cluster == 0).flatten().tolist()
    found = [flip_gap(mixture, models, client, beta) for client in clients for beta in betas]
    return max(abs(measured - law) / law for law, measured in found)


def population(truth: Tensor, risk: Risk, beta: float) -> Risk:
    """F-hat of a cluster, but for its constant: alpha |theta - theta*|^2 + beta l(theta)."""
    return lambda models: (1 - beta) * (models - truth).square().sum(dim=-1) + beta * risk(models)


def minimiser(loss: Risk, start: Tensor) -> Tensor:
    """The local minimum of ``loss`` that descent from ``start`` (d,) finds."""
    theta = start.clone().requires_grad_()
    search = torch.optim.LBFGS(
        [theta], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        search.zero_grad()
        value = loss(theta)
        value.backward()
        return value.item()

    search.step(closure)
    return theta.detach()


def hessian_range(loss: Risk, centre: Tensor, radius: float, stream: Stream) -> tuple[float, float]:
    """Least and largest eigenvalue of the Hessian at 200 points of a ball about ``centre`` (d,), and at the centre."""
    way = torch.randn(200, len(centre), generator=stream.generator(), dtype=torch.float64)
    lengths = radius * torch.rand(200, 1, generator=stream("lengths").generator(), dtype=torch.float64)
    points = torch.cat([centre[None], centre + lengths * way / way.norm(dim=1, keepdim=True)])
    values = torch.linalg.eigvalsh(torch.func.vmap(torch.func.jacrev(torch.func.grad(loss)))(points))
    return float(values.min()), float(values.max())


def risk_rows(mixture: Mixture, courses: list[tuple[float, float, Course]], stream: Stream) -> list[dict]:
    """A row a (beta, gap, cluster): who left at first and in the end, where the model ended, what F-hat is like."""
    away, rows = least_distance(mixture.truth), []
    share = torch.bincount(mixture.cluster).double() / len(mixture.cluster)
    for beta, gap, course in courses:
        risk = synthetic_risk(mixture, gap)
        for j, truth in enumerate(mixture.truth):
            mine, loss = mixture.cluster == j, population(truth, risk, beta)
            low, high = hessian_range(loss, truth, away / 4, stream("ball", j))
            rows.append(
                {
                    "beta": beta,
                    "gap": gap,
                    "cluster": j,
                    "clients": int(mine.sum()),
                    "left_first": int((course.choices[0][mine] != j).sum()),
                    "left_last": int((course.choices[-1][mine] != j).sum()),
                    "distance": float(course.distances[-1, j]),
                    "pooled": float(1 - share[j]) * away,
                    "minimiser": float((minimiser(loss, truth) - truth).norm()),
                    "lambda_hat": low,
                    "L_hat": high,
                }
            )
    return rows
