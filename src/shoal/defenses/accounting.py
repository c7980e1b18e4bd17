"""The guarantee of DP-SGD: the epsilon of each client over its local trainings, by Opacus' accountants.

It protects one record of a client, which is present or left out, against anybody who sees everything that the client
sends in all rounds, all released models, and the model that the client uses: every local training of the client is
counted, also those that send nothing (`ClientTrainings`).

Three limits. Accountants assume Poisson subsampling (`DPSGD.sampling` = "poisson"); for shuffled batches the same value
is reported, as is usual, and is an approximation. A choice of model, as in IFCA, is computed without noise and sent,
and no epsilon covers it. The number of a client's examples is taken as known: batches, the weights of averages and the
divisor of the noise follow from it.
"""

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.data.federation import Federation
from shoal.defenses.dp_sgd import DPSGD, Accountant
from shoal.engine import ClientTrainings, LocalSGD

Spent = tuple[float, int]
"""The sampling rate of a step, in (0, 1], and a number of such steps."""


def epsilon(spent: Sequence[Spent], noise_multiplier: float, delta: float, accountant: Accountant = "rdp") -> float:
    """The epsilon of composed subsampled Gaussian mechanisms, by Opacus' accountants.

    Args:
        spent: sampling rates and steps.
        noise_multiplier: sigma of all steps; 0: epsilon is infinite.
        delta: in (0, 1).
        accountant: "rdp", at Opacus' default orders, or "prv".

    Raises:
        InputError: the "prv" accountant would need too much memory.

    >>> epsilon([], 1.0, 1e-5), epsilon([(0.1, 5)], 0.0, 1e-5)
    (0.0, inf)
    >>> round(epsilon([(0.01, 1000)], 1.0, 1e-5), 3)
    2.101
    """
    return composed([(noise_multiplier, rate, steps) for rate, steps in spent], delta, accountant)


def composed(history: Sequence[tuple[float, float, int]], delta: float, accountant: Accountant = "rdp") -> float:
    """The epsilon of steps with perhaps different noise: noise multipliers, sampling rates, numbers of steps.

    Raises:
        InputError: as `epsilon`.

    >>> composed([(1.0, 0.01, 600), (1.0, 0.01, 400)], 1e-5) == epsilon([(0.01, 600), (0.01, 400)], 1.0, 1e-5)
    True
    """
    used = tuple(part for part in history if part[2] > 0)
    if not used:
        return 0.0
    if any(noise == 0 for noise, _, _ in used):
        return math.inf
    return _epsilon_of_history(used, delta, accountant)


Counted = tuple[LocalSGD, Tensor, Tensor]
"""A local training, each client's number of examples in it (N,) int64, and of times that it takes it (N,) int64."""


def client_epsilons(counted: Sequence[Counted], rule: DPSGD) -> Tensor:
    """The epsilon of each of N clients, over all its local trainings; ``rule`` is the privacy of their steps.

    Returns:
        (N,) float64, at least 0; infinite without noise.
    """
    locals_ = [local for local, _, _ in counted]
    columns = [column for _, sizes, times in counted for column in (sizes, times)]
    clients = list(map(tuple, torch.stack(columns, dim=1).tolist()))
    epsilons: dict[tuple[int, ...], float] = {}
    for client in dict.fromkeys(clients):
        steps = Counter[float]()
        for local, size, times in zip(locals_, client[::2], client[1::2], strict=True):
            if size and times:
                steps[local.batch(size) / size] += times * local.steps_of(size)
        epsilons[client] = epsilon(list(steps.items()), rule.noise_multiplier, rule.delta, rule.accountant)
    return torch.tensor([epsilons[client] for client in clients], dtype=torch.float64)


def federation_epsilons(
    federation: Federation, cohorts: Sequence[Tensor], trainings: ClientTrainings, rule: DPSGD, first_round: int = 1
) -> Tensor:
    """The epsilon of each of a federation's N clients after some rounds and the trainings after the last.

    A client with a schedule uses an example either in every k-th round or in all others: its epsilon is the larger of
    the two.

    Args:
        cohorts: positions of the clients of each round.
        trainings: of every client, with all defences.
        rule: the privacy of steps.
        first_round: number of the first of these rounds.

    Returns:
        (N,) float64.
    """
    count = len(federation)
    attended = torch.zeros(len(cohorts), count, dtype=torch.int64)
    for here, cohort in zip(attended, cohorts, strict=True):
        here[cohort] = 1
    first = torch.zeros_like(attended)
    if trainings.first is not None and bool(attended.any()):
        begin = int(attended.any(dim=1).int().argmax())
        first[begin], attended[begin] = attended[begin].clone(), 0

    def counted(sizes: Tensor, of_rounds: Tensor, of_first: Tensor, all_sizes: Tensor) -> list[Counted]:
        in_rounds = [(local, sizes, of_rounds) for local in trainings.rounds]
        in_first = [(local, sizes, of_first) for local in trainings.first or ()]
        return [*in_rounds, *in_first, *((local, all_sizes, torch.ones_like(sizes)) for local in trainings.final)]

    sizes = federation.clients.sizes
    epsilons = client_epsilons(counted(sizes, attended.sum(dim=0), first.sum(dim=0), sizes), rule)
    schedule = federation.schedule
    if schedule is None:
        return epsilons
    numbers = range(first_round, first_round + len(cohorts))
    present = torch.tensor([schedule.present(number) for number in numbers], dtype=torch.bool)
    for i in torch.nonzero(federation.ids == schedule.victim).flatten().tolist():
        parts = torch.stack([federation.clients_in_round(number).sizes[i] for number in (schedule.period, 1)])
        later, begun = (
            torch.stack([rounds[present, i].sum(), rounds[~present, i].sum()]) for rounds in (attended, first)
        )
        epsilons[i] = client_epsilons(counted(parts, later, begun, sizes[i].expand(2)), rule).max()
    return epsilons


@lru_cache(maxsize=4096)
def _epsilon_of_history(used: tuple[tuple[float, float, int], ...], delta: float, accountant: Accountant) -> float:
    with warnings.catch_warnings():
        # Opacus warns of orders at the end of its list, where its value is still a bound.
        warnings.simplefilter("ignore")
        # Imported here because it takes seconds.
        from opacus.accountants import PRVAccountant, RDPAccountant  # noqa: PLC0415

        counting = RDPAccountant() if accountant == "rdp" else PRVAccountant()
        counting.history = list(used)
        try:
            value = float(counting.get_epsilon(delta))
        except (RuntimeError, ValueError, MemoryError, OverflowError) as error:
            raise InputError(_TOO_MUCH) from error
    require(math.isfinite(value), _TOO_MUCH)
    return value


_TOO_MUCH = 'the accountant "prv" takes too much memory for so many steps with so little noise; use "rdp"'
_POINTS = 3e7
"""Points of the mesh of "prv", above which it takes minutes and gigabytes."""


def check_accountable(federation: Federation, rounds: int, trainings: ClientTrainings) -> None:
    """Raise `InputError` where the accountant could not say, after all rounds, what the clients spent.

    Each client is taken to be in a first round of its own, where ``trainings`` have one.
    """
    rule = private_rule(trainings.rounds[0])
    if rule is None:
        return
    attended = [(federation.clients.sizes, rounds)]
    schedule = federation.schedule
    if schedule is not None:
        # That client has fewer examples in each of its two kinds of rounds, and a step takes more of them.
        present = rounds // schedule.period
        for number, often in ((1, rounds - present), (schedule.period, present)):
            sizes = federation.clients_in_round(number).sizes[federation.ids == schedule.victim]
            attended.append((sizes, often))
    for sizes, often in attended:
        check_computable(sizes, often, trainings, rule)


def private_rule(local: LocalSGD) -> DPSGD | None:
    """How local steps are private by DP-SGD, if they are."""
    rule = local.gradient_privacy
    return rule if local.private and isinstance(rule, DPSGD) else None


def check_computable(sizes: Tensor, rounds: int, trainings: ClientTrainings, rule: DPSGD) -> None:
    """Raise `InputError` where ``rounds`` rounds of clients with ``sizes`` (N,) examples need too much memory.

    A first round of its own and what follows the last round come on top of these.
    """
    if rule.accountant == "rdp" or rule.noise_multiplier == 0 or not len(sizes):
        return
    kinds = sizes[sizes > 0].unique().tolist()
    once = (*(trainings.first or ()), *trainings.final)
    trained = [*((local, rounds) for local in trainings.rounds), *((local, 1) for local in once)]
    spent = [
        (max(local.batch(size) / size for size in kinds), times * max(map(local.steps_of, kinds)))
        for local, times in trained
    ]
    # As Opacus chooses its mesh: twice the largest privacy loss, in cells of 0.01 over this root.
    cells = math.sqrt(sum(steps for _, steps in spent) * math.log(12_000 / rule.delta) / 2) / 0.01
    require(2 * epsilon(spent, rule.noise_multiplier, rule.delta) * cells <= _POINTS, _TOO_MUCH)
