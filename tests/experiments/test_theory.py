"""The scripts on IFCA's and IFCA-MIR's theory, against references and formulas."""

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "experiments" / "theory"))

import contraction
import success_grid
import success_rate
from assignment_flips import flip_errors
from gradient_descent import descend
from ifca_rounds import Method, draw_clusters, run_rounds, synthetic_risk
from mixture import Mixture, Setting, draw_mixture, draw_starts
from theorem import gradient_variance, loss_variance, sampled_variances

from shoal.algorithms import IFCA
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Engine, LocalSGD, State, Training
from shoal.models import Model

pytestmark = pytest.mark.usefixtures("_rendered_figures")


def by_hand(mixture: Mixture, models: Tensor, rate: float, rounds: int) -> np.ndarray:
    """IFCA with gradient averaging as it is written down: client by client, from models (p, d)."""
    theta = models.double().numpy().copy()
    x, y = mixture.x.double().numpy(), mixture.y.double().numpy()
    m, n, _ = x.shape
    for _ in range(rounds):
        steps = np.zeros_like(theta)
        for i in range(m):
            residuals = [x[i] @ each - y[i] for each in theta]
            j = int(np.argmin([np.mean(residual**2) for residual in residuals]))
            steps[j] += 2 / n * x[i].T @ residuals[j]
        theta -= rate / m * steps
    return theta


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize(("p", "r", "rate"), [(2, 0.25, 0.3), (2, 0.1, 0.02), (4, 1.0, 0.5), (4, 0.2, 0.5)])
def test_many_runs_at_once_are_the_runs_client_by_client(p: int, r: float, rate: float, lazy: bool) -> None:
    setting = Setting(m=24, n=8, p=p, r=r, sigma=0.1, d=12)
    mixture = draw_mixture(setting, Stream(3), torch.float64)
    first = draw_starts(setting, Stream(3), 6).double()
    ends = descend(mixture, first, rate, 60, lazy=lazy)
    for start, end in zip(first, ends, strict=True):
        assert np.allclose(end.numpy(), by_hand(mixture, start, rate, 60), rtol=0, atol=1e-5)


class Regression(nn.Module):
    """A linear model whose inputs carry their target in the last column; outputs are (prediction, target)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.linear(x[:, :-1]), x[:, -1:]], dim=1)


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs[:, 0] - outputs[:, 1]).square()


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_shoal_s_engine_runs_the_same_rounds(backend: str) -> None:
    setting = Setting(m=8, n=10, p=2, r=1.0, sigma=0.1, d=6)
    mixture, (first,) = draw_mixture(setting, Stream(3)), draw_starts(setting, Stream(3), 1)
    inputs = torch.cat([mixture.x, mixture.y[:, :, None]], dim=2)
    nothing = torch.zeros(10, dtype=torch.int64)
    federation = Federation.from_tensors([(x, nothing) for x in inputs], test=(inputs[0], nothing))
    local = LocalSGD(steps=1, batch_size="all", learning_rate=0.2)
    with Engine(Model(Regression, squared), threads=1, backend=backend) as engine:
        training = Training(engine.prepare(federation), IFCA(2, averaging="gradient"), local, engine, Stream(0))
        state = State(0, first.clone(), torch.zeros(2, dtype=torch.float64), torch.full((8,), -1))
        *_, (last, report) = training.rounds(state, 25)
    assert len(report.assignment.unique()) == 2
    expected = descend(mixture, first[None], 0.2, 25)[0]
    assert torch.allclose(last.models, expected, rtol=0, atol=1e-5)


def plan_of(path: Path, *words: str) -> success_grid.Plan:
    return success_grid.plan_of(
        success_grid.parse_arguments("", [str(path), "--table", "p2-m-n", "--rounds", "60", *words])
    )


WORDS = ("--d", "6", "--m", "8", "10", "--n", "10", "--r", "1", "--data-seeds", "2", "--starts", "3", "--rounds", "10")


def test_a_killed_table_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.csv"
    plan = plan_of(path, *WORDS)
    success_rate.run_missing(plan, path)
    whole, best_run, calls = path.read_bytes(), success_rate.best_run, []
    # In the middle of the second of four rows.
    path.write_bytes(whole[: whole.index(b"\n", whole.index(b"\n") + 1) + 9])
    monkeypatch.setattr(success_rate, "best_run", lambda *given: calls.append(given) or best_run(*given))
    success_rate.run_missing(plan, path)
    assert path.read_bytes() == whole
    assert len(calls) == 3


# --- the theorem -----------------------------------------------------------------------------------------------------


def isotropic(sizes: tuple[int, ...], d: int) -> tuple[Mixture, Tensor]:
    """Clients whose empirical Hessian is 2 I exactly, without noise, and first models 0.2 from far truths."""
    generator = Stream(7).generator()
    cluster = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    frames = torch.linalg.qr(torch.randn(len(cluster), d, d, generator=generator, dtype=torch.float64)).Q
    truth = torch.eye(len(sizes), d, dtype=torch.float64)
    x = math.sqrt(d) * frames
    y = torch.einsum("mnd,md->mn", x, truth[cluster])
    start = truth.clone()
    start[:, -1] += 0.2
    return Mixture(x, y, truth, cluster), start


@pytest.mark.parametrize("averaging", ["gradient", "model"])
@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_contraction_on_an_isotropic_quadratic_is_the_closed_form(averaging, rate: float) -> None:
    mixture, start = isotropic((2, 6), 5)
    trajectory = run_rounds(mixture, start, Method(averaging, 0.0, rate), synthetic_risk(mixture, 0.0), 6)
    assert bool((trajectory.assignments == mixture.cluster).all())
    part = torch.tensor([0.25, 0.75]) if averaging == "gradient" else torch.ones(2)
    expected = 0.2 * (1 - 2 * rate * part.double()) ** torch.arange(7)[:, None]
    assert torch.allclose(trajectory.distances, expected, rtol=1e-9, atol=1e-12)
    bound = 1 - 0.25 * 1 / 8
    assert bool((trajectory.distances[1:] <= bound * trajectory.distances[:-1] + 1e-12).all())


def test_bisection_finds_the_formula_s_gap_for_every_client_and_weight() -> None:
    mixture, start = draw_clusters((4, 12), 50, 5, 0.1, Stream(1))
    assert flip_errors(mixture, start, (0.1, 0.5, 0.9)) < 1e-12


@pytest.mark.parametrize("distance", [0.0, 0.3, 2.0])
def test_variances_in_closed_form_are_those_of_samples(distance: float) -> None:
    loss, gradient = sampled_variances(distance, 0.1, 8, Stream(0).generator())
    assert loss_variance(distance, 0.1) == pytest.approx(loss, rel=0.05)
    assert gradient_variance(distance, 0.1, 8) == pytest.approx(gradient, rel=0.05)


def test_contraction_writes_its_tables_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"SIZES": (3, 9), "BATCH": 60, "D": 5, "ROUNDS": 9, "BETAS": (0.5, 0.8), "GAPS": (0.5,)}
    for name, value in small.items():
        monkeypatch.setattr(contraction, name, value)
    monkeypatch.setattr(sys, "argv", ["contraction.py", str(tmp_path), "--seeds", "0", "1"])
    contraction.main()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"contraction.csv", "assumptions.csv", "risk.csv", "contraction.svg", "contraction.pdf"}
    assert len(pd.read_csv(tmp_path / "contraction.csv")) == 2 * (2 + 2 + 2) * 10 * 2
