"""Privacy accounting of DP-SGD: the epsilon of each client over all its local training runs.

The guarantee protects one record of a client (present or absent). The attacker sees everything that the client sends in
all rounds, all released models, and the model that the client uses. The account includes local training runs whose
results are not sent (`ClientTrainings`).

A record is the set of a client's rows with the same input and label. A record with k rows has the noise multiplier
sigma / k and the sampling rate 1 - (1 - q)^k (see `of_copies`).

The accountants assume Poisson subsampling, so with shuffled batches the epsilon is an approximation. The epsilon does
not cover a choice of a model without noise, as in IFCA. The number of a client's examples is treated as public.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.data.content import most_copies
from shoal.data.federation import Federation
from shoal.data.preferences import VIEWS, View
from shoal.defenses.defense import TrainingSetup
from shoal.defenses.dp_sgd import DPSGD, Accountant, NoiseShare
from shoal.engine import ClientTrainings, LocalSGD
from shoal.metrics.attack_bounds import AttackBound, History, compose_bound, gaussian_bound
from shoal.metrics.intervals import Floats


def composed_epsilon(
    history: Sequence[tuple[float, float, int]], delta: float, accountant: Accountant = "rdp"
) -> float:
    """Compute the epsilon of composed subsampled Gaussian mechanisms with an accountant of Opacus.

    Args:
        history: a triple per group of equal steps: noise multiplier, sampling rate in (0, 1], and number of steps. A
            noise multiplier of 0 makes epsilon infinite.
        delta: the delta of the guarantee, in (0, 1).
        accountant: "rdp" (with Opacus' default orders) or "prv".

    Raises:
        InputError: the accountant "prv" would need too much memory.

    >>> composed_epsilon([], 1e-5), composed_epsilon([(0.0, 0.1, 5)], 1e-5)
    (0.0, inf)
    >>> round(composed_epsilon([(1.0, 0.01, 600), (1.0, 0.01, 400)], 1e-5), 3)
    2.101
    """
    used = tuple(part for part in history if part[2] > 0)
    if not used:
        return 0.0
    if any(noise == 0 for noise, _, _ in used):
        return math.inf
    return _epsilon_of_history(used, delta, accountant)


def of_copies(noise_multiplier: float, rate: float, copies: int) -> tuple[float, float]:
    """Return the noise multiplier and the sampling rate that bound a step for a record with ``copies`` rows.

    Source: Ganesh 2024, arXiv:2401.10294, on mixtures of Gaussian mechanisms.

    >>> of_copies(3.0, 0.5, 1), of_copies(3.0, 0.5, 2)
    ((3.0, 0.5), (1.5, 0.75))
    """
    return (noise_multiplier, rate) if copies == 1 else (noise_multiplier / copies, 1 - (1 - rate) ** copies)


Counted = tuple[LocalSGD, Tensor, Tensor]
"""A local training, with each client's number of examples and number of repetitions, both (N,) int64."""


def client_epsilons(
    counted: Sequence[Counted],
    rule: DPSGD,
    choice_noise: float | None = None,
    copies: Tensor | None = None,
    of: Callable[[History], float] | None = None,
) -> Tensor:
    """Compute the epsilon of each of N clients over all its local training runs.

    Args:
        counted: the local training runs and their repetitions; see `Counted`.
        rule: the DP-SGD defence of the local steps.
        choice_noise: the noise multiplier of the Gaussian mechanism that chose a client's cluster, or None.
        copies: the number of rows of each client's most frequent record, (N,) int64, or None for one row.
        of: a function of a client's steps that replaces epsilon. With ``of``, shuffled batches are treated exactly,
            because each record is in one batch per pass.

    Returns:
        The epsilons, (N,) float64, at least 0, and infinite without noise.
    """
    locals_ = [local for local, _, _ in counted]
    columns = [column for _, sizes, times in counted for column in (sizes, times)]
    columns.append(torch.ones_like(columns[0]) if copies is None else copies)
    clients = list(map(tuple, torch.stack(columns, dim=1).tolist()))
    epsilons: dict[tuple[int, ...], float] = {}
    for client in dict.fromkeys(clients):
        steps = Counter[float]()
        most = client[-1]
        for local, size, times in zip(locals_, client[:-1:2], client[1::2], strict=True):
            if size and times and of is not None and not rule.poisson:
                steps[1.0] += times * local.passes_of(size)
            elif size and times:
                steps[local.batch(size) / size] += times * local.steps_of(size)
        history = [(*of_copies(rule.noise_multiplier, rate, most), count) for rate, count in steps.items()]
        history += [] if choice_noise is None else [(choice_noise / most, 1.0, 1)]
        epsilons[client] = of(tuple(history)) if of else composed_epsilon(history, rule.delta, rule.accountant)
    return torch.tensor([epsilons[client] for client in clients], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class PrivateTrainings:
    """The private local training runs of N clients in a range of rounds and after its last round.

    Args:
        federation: the clients. If a schedule splits a client's examples between two kinds of rounds, the larger
            epsilon counts.
        cohorts: the positions of the clients in each round.
        trainings: every client's local training, with all defences.
        rule: the DP-SGD defence of the local steps.
        first_round: the number of the first round.
        choice_noise: the noise multiplier of the mechanism that chose a client's cluster, or None.
        copies: the number of rows of each client's most frequent record, (N,) int64. None counts the rows in
            ``federation``.
    """

    federation: Federation
    cohorts: Sequence[Tensor]
    trainings: ClientTrainings
    rule: DPSGD
    first_round: int = 1
    choice_noise: float | None = None
    copies: Tensor | None = None

    def epsilons(self, of: Callable[[History], float] | None = None) -> Tensor:
        """Compute each client's epsilon (N,) float64, or ``of`` each client's steps, as in `client_epsilons`."""
        federation, trainings = self.federation, self.trainings
        copies = most_copies(federation.clients) if self.copies is None else self.copies
        attended = torch.zeros(len(self.cohorts), len(federation), dtype=torch.int64)
        for here, cohort in zip(attended, self.cohorts, strict=True):
            here[cohort] = 1
        first = torch.zeros_like(attended)
        if trainings.first is not None and bool(attended.any()):
            begin = int(attended.any(dim=1).int().argmax())
            first[begin], attended[begin] = attended[begin].clone(), 0

        def spent(sizes: Tensor, of_rounds: Tensor, of_first: Tensor, all_sizes: Tensor, copies: Tensor) -> Tensor:
            counted = [(local, sizes, of_rounds) for local in trainings.rounds]
            counted += [(local, sizes, of_first) for local in trainings.first or ()]
            counted += [(local, all_sizes, torch.ones_like(sizes)) for local in trainings.final]
            return client_epsilons(counted, self.rule, self.choice_noise, copies, of)

        sizes = federation.clients.sizes
        epsilons = spent(sizes, attended.sum(dim=0), first.sum(dim=0), sizes, copies)
        schedule = federation.schedule
        if schedule is None:
            return epsilons
        numbers = range(self.first_round, self.first_round + len(self.cohorts))
        present = torch.tensor([schedule.present(number) for number in numbers], dtype=torch.bool)
        for i in torch.nonzero(federation.ids == schedule.victim).flatten().tolist():
            parts = torch.stack([federation.clients_in_round(number).sizes[i] for number in (schedule.period, 1)])
            later, begun = (
                torch.stack([rounds[present, i].sum(), rounds[~present, i].sum()]) for rounds in (attended, first)
            )
            epsilons[i] = spent(parts, later, begun, sizes[i].expand(2), copies[i].expand(2)).max()
        return epsilons

    def bound(self) -> AttackBound:
        """Compute the limit, for all views, on every attack against any client's records, with noise at clients."""

        def largest(index: int) -> float:
            return float(self.epsilons(lambda history: compose_bound(history)[index]).max())

        return AttackBound(largest(0), largest(1))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Compute the exact epsilon of Gaussian mechanisms with ``mu^2 = sum (sensitivity / standard deviation)^2``.

    The result solves ``delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)``.

    Source: Balle and Wang, ICML 2018, arXiv:1805.06530, Theorem 8; composition by Dong, Roth and Su, arXiv:1905.02383,
    Corollary 3.3.

    >>> round(gaussian_epsilon(1.0, 1e-5), 3), gaussian_epsilon(0.0, 1e-5), gaussian_epsilon(math.inf, 1e-5)
    (4.377, 0.0, inf)
    """
    if mu in (0.0, math.inf):
        return mu
    from scipy.optimize import brentq  # noqa: PLC0415 (of few runs)
    from scipy.special import log_ndtr  # noqa: PLC0415

    def excess(value: float) -> float:
        low, high = log_ndtr(mu / 2 - value / mu), value + log_ndtr(-mu / 2 - value / mu)
        return math.exp(low) - math.exp(high) - delta

    # The tail bound of the privacy loss, whose mean is mu^2 / 2 and whose standard deviation is mu.
    most = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    if excess(0.0) <= 0:
        return 0.0
    solution: Any = brentq(excess, 0.0, most)
    return float(solution)


def epsilons_by_view(
    rule: DPSGD,
    rounds: Tensor,
    choice_noise: float | None = None,
    *,
    secure: bool = False,
    copies: Tensor | None = None,
    of: Callable[[float], float] | None = None,
) -> dict[View, Tensor]:
    """Compute the epsilons (N,) float64 of N clients for each view, with noise in sums over clients.

    A sum over m clients has noise with standard deviation sigma C. The views are:

    - An outsider sees models computed from such sums.
    - A client knows its own noise, so (m - 1) / m of the noise variance remains.
    - A server without secure aggregation sees each client's update, which has 1 / m of the noise variance.

    Each round is one Gaussian mechanism on all examples of a client.

    Args:
        rule: the DP-SGD defence, with ``noise = "sum"``.
        rounds: the number of rounds in which each client took part, (N,) int64.
        choice_noise: the noise multiplier of the mechanism that chose a client's cluster, or None.
        secure: whether the server sees only sums. The server may know one client's noise, so its epsilon then equals a
            client's.
        copies: the number of rows of each client's most frequent record, (N,) int64.
        of: a function of ``mu`` (see `gaussian_epsilon`) that replaces epsilon.
    """
    counted = torch.stack([rounds, torch.ones_like(rounds) if copies is None else copies])
    least, (kinds, index) = rule.min_clients or 1, counted.unique(dim=1, return_inverse=True)
    without_own = (least - 1) / least
    shares = dict(zip(VIEWS, (1.0, without_own, without_own if secure else 1 / least), strict=True))
    chosen = 0.0 if choice_noise is None else math.inf if choice_noise == 0 else choice_noise**-2
    epsilons: dict[View, Tensor] = {}
    for view, share in shares.items():
        noise = rule.noise_multiplier * math.sqrt(share)
        mus = [most * _mu(noise, number, chosen) for number, most in kinds.T.tolist()]
        values = [of(mu) if of else gaussian_epsilon(mu, rule.delta) for mu in mus]
        epsilons[view] = torch.tensor(values, dtype=torch.float64)[index]
    return epsilons


def bounds_by_view(
    rule: DPSGD, rounds: Tensor, choice_noise: float | None = None, copies: Tensor | None = None
) -> dict[View, AttackBound]:
    """Compute the bound on every attack against any client's records, for each view, with noise in sums."""
    mus = epsilons_by_view(rule, rounds, choice_noise, copies=copies, of=float)
    return {view: gaussian_bound(float(of_clients.max())) for view, of_clients in mus.items()}


def _mu(noise: float, rounds: int, chosen: float) -> float:
    if rounds and noise == 0:
        return math.inf
    return math.sqrt((rounds / noise**2 if rounds else 0.0) + chosen)


@lru_cache(maxsize=4096)
def _rdp_of_step(rate: float, noise: float) -> Floats:
    """The Renyi divergences of one subsampled Gaussian mechanism, at Opacus' default orders."""
    from opacus.accountants import RDPAccountant  # noqa: PLC0415
    from opacus.accountants.analysis.rdp import compute_rdp  # noqa: PLC0415

    return np.asarray(compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=RDPAccountant.DEFAULT_ALPHAS))


@lru_cache(maxsize=4096)
def _epsilon_of_history(used: History, delta: float, accountant: Accountant) -> float:
    with warnings.catch_warnings():
        # Opacus warns of orders at the end of its list, where its value is still a bound.
        warnings.simplefilter("ignore")
        # Imported here because it takes seconds.
        from opacus.accountants import PRVAccountant, RDPAccountant  # noqa: PLC0415
        from opacus.accountants.analysis.rdp import get_privacy_spent  # noqa: PLC0415

        try:
            if accountant == "rdp":
                # `RDPAccountant.get_epsilon`, whose divergence of a step is computed once for any number of steps.
                orders = RDPAccountant.DEFAULT_ALPHAS
                rdp = sum((_rdp_of_step(rate, noise) * steps for noise, rate, steps in used), np.zeros(len(orders)))
                spent, _ = get_privacy_spent(orders=orders, rdp=rdp.tolist(), delta=delta)
            else:
                counting = PRVAccountant()
                counting.history = list(used)
                spent = counting.get_epsilon(delta)
            # The conversion from Renyi divergence is below 0 where delta is large.
            value = max(0.0, float(spent))
        except (RuntimeError, ValueError, MemoryError, OverflowError) as error:
            raise InputError(_TOO_MUCH) from error
    require(math.isfinite(value), _TOO_MUCH)
    return value


_TOO_MUCH = '\'accountant\' must be "rdp" (got "prv"), because "prv" would need too much memory for these steps'
_POINTS = 3e7
"""The largest number of grid points of "prv"; more points take minutes and gigabytes."""


def check_accountable(federation: Federation, rounds: int, trainings: ClientTrainings) -> None:
    """Raise `InputError` if the accountant cannot compute the epsilon of all rounds."""
    rule = private_rule(trainings.rounds[0])
    if rule is None:
        return
    copies = int(most_copies(federation.clients).max()) if _needs_memory(rule) and len(federation) else 1
    attended = [(federation.clients.sizes, rounds)]
    schedule = federation.schedule
    if schedule is not None:
        # That client has fewer examples in each of its two kinds of rounds, and a step takes more of them.
        present = rounds // schedule.period
        for number, often in ((1, rounds - present), (schedule.period, present)):
            sizes = federation.clients_in_round(number).sizes[federation.ids == schedule.victim]
            attended.append((sizes, often))
    for sizes, often in attended:
        check_computable(sizes, often, trainings, rule, copies)


def check_sums(setup: TrainingSetup, trainings: ClientTrainings, clients: int) -> None:
    """Raise `InputError` if noise in sums would not cover all training, or if ``clients`` is below ``min_clients``."""
    rule = private_rule(trainings.rounds[0])
    if rule is None or rule.noise == "client":
        return
    require(
        (rule.min_clients or 1) <= clients,
        f"'min_clients' must be at most the number of clients, {clients} (got {rule.min_clients})",
    )
    require(
        not trainings.final,
        "noise = 'sum' does not allow local training after the last round, as in fine-tuning; use noise = 'client'",
    )
    filtered = setup.update_filter or setup.client_filter
    require(
        filtered is None,
        f"noise = 'sum' cannot be combined with {type(filtered).__name__}; remove one of the two defences",
    )


def private_rule(local: LocalSGD) -> DPSGD | None:
    """Return the DP-SGD defence of local steps, or None if the steps are not private."""
    rule = local.gradient_privacy
    if isinstance(rule, NoiseShare):
        return rule.rule
    return rule if local.private and isinstance(rule, DPSGD) else None


def _needs_memory(rule: DPSGD) -> bool:
    return rule.accountant == "prv" and rule.noise == "client" and rule.noise_multiplier > 0


def check_computable(sizes: Tensor, rounds: int, trainings: ClientTrainings, rule: DPSGD, copies: int = 1) -> None:
    """Raise `InputError` if ``rounds`` rounds of clients with ``sizes`` (N,) examples need too much memory.

    The check includes training runs in the first round and after the last round. No record may have more than
    ``copies`` rows.
    """
    if not _needs_memory(rule) or not len(sizes):
        return
    kinds = sizes[sizes > 0].unique().tolist()
    once = (*(trainings.first or ()), *trainings.final)
    trained = [*((local, rounds) for local in trainings.rounds), *((local, 1) for local in once)]
    spent = [
        (
            *of_copies(rule.noise_multiplier, max(local.batch(size) / size for size in kinds), copies),
            times * max(map(local.steps_of, kinds)),
        )
        for local, times in trained
    ]
    # As Opacus chooses its mesh: twice the largest privacy loss, in cells of 0.01 over this root.
    cells = math.sqrt(sum(steps for _, _, steps in spent) * math.log(12_000 / rule.delta) / 2) / 0.01
    require(2 * composed_epsilon(spent, rule.delta) * cells <= _POINTS, _TOO_MUCH)
