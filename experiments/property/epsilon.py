"""Which sampling rate, steps and delta give the epsilons of Kim et al., RAID 2023: 9.23 at sigma 0.5, 33.13 at 0.2?

python experiments/property/epsilon.py

The paper says neither of the three, nor the accountant (its "momentum accountant" is the moments accountant of Abadi et
al. 2016). One setting must give both epsilons. Printed: the candidates nearest to that; with any real sampling rate and
delta, what each number of steps would need; and all clients' sizes that give both at a round delta. Takes minutes.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

PAPER = {0.5: 9.23, 0.2: 33.13}
WITHIN = {0.5: (9.225, 9.235), 0.2: (33.125, 33.145)}
"""What rounds to the paper's figures: section 5.2 says 33.13, the introduction 33.14."""
BATCH = 32
IMAGES = {"LFW": 13_233, "70 % of LFW": 9_263}
CLIENTS = (1, *range(3, 21))
ROUNDS = (1, 300, 500, 1_000, 3_000, 4_000, 5_000, 6_000)

OPACUS = tuple([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))
TENSORFLOW = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)
"""The orders of TensorFlow Privacy's `compute_dp_sgd_privacy`."""
MOMENTS = {"32": tuple(range(2, 34)), "64": tuple(range(2, 66))}
"""Abadi et al. take moments up to 32; a moment is an order less one. TensorFlow's first accountant went to 64."""
EVERY = tuple(sorted({*OPACUS, *TENSORFLOW, *MOMENTS["64"]}))


@dataclass(frozen=True)
class Setting:
    """A sampling rate with a number of steps and a delta, and whose they are."""

    what: str
    rate: float
    steps: int
    delta: float


@cache
def renyi(rate: float, sigma: float) -> dict[float, float]:
    """The Renyi divergence of one step, by order."""
    from opacus.accountants.analysis.rdp import compute_rdp  # noqa: PLC0415

    found = compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=list(EVERY))
    return dict(zip(EVERY, np.asarray(found).tolist(), strict=True))


def by_orders(setting: Setting, sigma: float, orders: tuple[float, ...], *, improved: bool) -> float:
    """Epsilon from Renyi divergences; ``improved``: by the conversion of Opacus and TensorFlow since 2020."""
    one, delta = renyi(setting.rate, sigma), setting.delta
    found = []
    for a in orders:
        more = math.log((a - 1) / a) - math.log(a) / (a - 1) if improved else 0.0
        found.append(setting.steps * one[a] - math.log(delta) / (a - 1) + more)
    return max(0.0, min(found))


def exact(setting: Setting, sigma: float) -> float:
    """The true epsilon of one step on a Poisson sample (no accountant can say less), which "prv" comes to within 0.01.

    Source: Balle and Wang 2018, arXiv:1805.06530, theorem 8, with amplification by Balle, Barthe, Gaboardi 2018.
    """
    if setting.steps != 1:
        return math.nan
    mu, delta = 1 / sigma, setting.delta / setting.rate
    if delta >= 1:
        return 0.0

    def missing(eps: float) -> float:
        return norm.cdf(mu / 2 - eps / mu) - math.exp(eps + norm.logcdf(-mu / 2 - eps / mu)) - delta

    if missing(0.0) <= 0:
        return 0.0
    return math.log1p(setting.rate * math.expm1(float(brentq(missing, 0, 500))))


def classic(setting: Setting, sigma: float) -> float:
    """One step of the Gaussian mechanism as textbooks have it (proved for epsilon below 1 alone), amplified."""
    if setting.steps != 1:
        return math.nan
    eps = math.sqrt(2 * math.log(1.25 * setting.rate / setting.delta)) / sigma if setting.delta < setting.rate else 0.0
    return math.log1p(setting.rate * math.expm1(eps))


Accountant = Callable[[Setting, float], float]
ACCOUNTANTS: dict[str, Accountant] = {
    "RDP, Opacus": lambda setting, sigma: by_orders(setting, sigma, OPACUS, improved=True),
    "RDP, Opacus, first conversion": lambda setting, sigma: by_orders(setting, sigma, OPACUS, improved=False),
    "RDP, TensorFlow Privacy": lambda setting, sigma: by_orders(setting, sigma, TENSORFLOW, improved=True),
    "RDP, TensorFlow, first conversion": lambda setting, sigma: by_orders(setting, sigma, TENSORFLOW, improved=False),
    "moments to 32": lambda setting, sigma: by_orders(setting, sigma, MOMENTS["32"], improved=False),
    "moments to 64": lambda setting, sigma: by_orders(setting, sigma, MOMENTS["64"], improved=False),
    "exact, one step": exact,
    "textbook Gaussian, one step": classic,
}


def candidates() -> Iterator[Setting]:
    """Settings that somebody could have meant."""
    for images, count in IMAGES.items():
        for clients in CLIENTS:
            size = count / clients
            rates = {BATCH / size: f"32 of a client's {size:.0f} ({images}, K = {clients})"}
            if (images, clients) == ("LFW", 1):
                rates[1.0] = "all examples"
            for rate, what in rates.items():
                pass_ = math.ceil(1 / rate)
                for steps in {*ROUNDS, pass_, *(rounds // 5 for rounds in ROUNDS if rounds >= 5)}:
                    deltas = {1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1 / size, 1 / count}
                    for delta in sorted(deltas):
                        yield Setting(what, rate, steps, delta)


def distance(found: dict[float, float]) -> float:
    """How far two epsilons are from the paper's: the larger ratio, as a logarithm; NaN where there is none."""
    if any(not value > 0 for value in found.values()):
        return math.nan
    return max(abs(math.log(found[sigma] / value)) for sigma, value in PAPER.items())


def matching(found: dict[float, float]) -> bool:
    """Whether both epsilons round to the paper's."""
    return all(low <= found[sigma] <= high for sigma, (low, high) in WITHIN.items())


def scanned() -> Iterator[tuple[str, int, Setting, dict[float, float]]]:
    """Clients' sizes from one batch to 600 examples that give both epsilons in a few steps at a round delta."""
    for size in range(BATCH, 601):
        for steps in (1, 2, 5, math.ceil(size / BATCH), 1_000, 5_000):
            for delta in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1 / size):
                setting = Setting("", BATCH / size, steps, delta)
                for name, accountant in ACCOUNTANTS.items():
                    found = {sigma: accountant(setting, sigma) for sigma in PAPER}
                    if matching(found):
                        yield name, size, setting, found


def needed(name: str, steps: int) -> tuple[Setting, dict[float, float]]:
    """The sampling rate and delta with which so many steps give 9.23 at sigma 0.5, and come nearest to 33.13 at 0.2."""
    accountant = ACCOUNTANTS[name]

    def fitted(log_rate: float) -> Setting:
        # Rounded, for the divergences of a rate to be computed once.
        rate = round(10.0**log_rate, 6)

        def over(log_delta: float) -> float:
            return accountant(Setting("", rate, steps, 10.0**log_delta), 0.5) - PAPER[0.5]

        ends = -60.0, -1e-9
        if over(ends[0]) < 0 or over(ends[1]) > 0:
            return Setting("any", rate, steps, math.nan)
        return Setting("any", rate, steps, 10.0 ** float(brentq(over, *ends)))

    def miss(log_rate: float) -> float:
        setting = fitted(log_rate)
        return 1e9 if math.isnan(setting.delta) else abs(accountant(setting, 0.2) - PAPER[0.2])

    grid = np.linspace(-3, 0, 31)
    start = int(np.argmin([miss(each) for each in grid]))
    low, high = grid[max(start - 1, 0)], grid[min(start + 1, 30)]
    best = minimize_scalar(miss, bounds=(low, high), method="bounded", options={"xatol": 1e-5}).x
    setting = fitted(min((float(best), float(grid[start])), key=miss))
    return setting, {sigma: accountant(setting, sigma) for sigma in PAPER}


def main() -> None:
    """Print both tables."""
    warnings.simplefilter("ignore")
    settings = list(candidates())
    rows, matches = [], 0
    for name, accountant in ACCOUNTANTS.items():
        best: tuple[float, Setting, dict[float, float]] | None = None
        for setting in settings:
            found = {sigma: accountant(setting, sigma) for sigma in PAPER}
            matches += matching(found)
            far = distance(found)
            if not math.isnan(far) and (best is None or far < best[0]):
                best = far, setting, found
        assert best is not None
        rows.append((name, best[1], best[2]))
    print(f"{len(settings):,} settings by {len(ACCOUNTANTS)} accountants; {matches} give both epsilons.\n")
    print("| accountant | nearest setting | steps | delta | epsilon at 0.5 | at 0.2 |\n|---|---|---|---|---|---|")
    for name, setting, found in rows:
        print(
            f"| {name} | {setting.what} | {setting.steps} | {setting.delta:.2g} | {found[0.5]:.2f} | {found[0.2]:.2f} |"
        )
    print("\n| accountant | steps | sampling rate | delta | epsilon at 0.5 | at 0.2 |\n|---|---|---|---|---|---|")
    for name in ("RDP, Opacus", "moments to 32", "exact, one step"):
        for steps in (1,) if name.endswith("one step") else (1, 2, 3, 10, 100, 1_000, 5_000):
            setting, found = needed(name, steps)
            print(
                f"| {name} | {steps} | {setting.rate:.4f} | {setting.delta:.2g} | {found[0.5]:.2f} | {found[0.2]:.2f} |"
            )
    print("\n| accountant | examples | steps | delta | epsilon at 0.5 | at 0.2 |\n|---|---|---|---|---|---|")
    for name, size, setting, found in scanned():
        print(f"| {name} | {size} | {setting.steps} | {setting.delta:.2g} | {found[0.5]:.4f} | {found[0.2]:.4f} |")
        every = replace(setting, steps=5_000)
        total = {sigma: ACCOUNTANTS["RDP, Opacus"](every, sigma) for sigma in PAPER}
        print(f"| the same, RDP, Opacus | {size} | 5000 | {setting.delta:.2g} | {total[0.5]:.0f} | {total[0.2]:.0f} |")


if __name__ == "__main__":
    main()
