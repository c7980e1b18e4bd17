"""The one-shot estimate of client-level privacy: epsilon from random canary updates in the one real training run.

Source: Andrew, Kairouz, Oh, Oprea, McMahan, Suriyakumar 2023 (ICLR 2024), arXiv:2302.03098, Algorithm 1 (final model
only). k canary clients send random directions c_i, scaled and then clipped, noised and averaged like any update. After
training, g_i = cos(c_i, theta_T - theta_0). A direction that nobody sent has g ~ N(0, 1/d) in d dimensions, and those
that were sent are summarised by a normal distribution N(mu, s^2). Epsilon is what tells these two apart at delta.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.representation import one_line
from shoal.data.federation import Federation
from shoal.engine import Algorithm, MaliciousTraining, RoundReport, State, Tensors, Training
from shoal.metrics import Metric, mean_interval
from shoal.metrics.intervals import Floats, RateEstimate
from shoal.metrics.summary import Summary

_MEANING = "An estimate of client-level epsilon, for these canaries; not a bound."


def canary_directions(clients: Sequence[int], dimension: int, stream: Stream) -> Tensor:
    """Random unit vectors (k, d) float32; each depends on the stream and the id of its client alone."""
    drawn = [torch.randn(dimension, generator=stream(int(client)).generator()) for client in clients]
    directions = torch.stack(drawn) if drawn else torch.empty(0, dimension)
    return directions / directions.norm(dim=1, keepdim=True)


def canary_cosines(directions: Tensor, start: Tensor, end: Tensor) -> Floats:
    """Cosines (k,) between directions (k, d) and what training moved, ``end - start`` (d,).

    Raises:
        InputError: training moved nothing.
    """
    moved = end.double() - start.double()
    length = float(moved.norm())
    require(length > 0, "the model did not move, so no direction can be compared with what training did")
    rows = directions.double()
    return (rows @ moved / (rows.norm(dim=1) * length)).numpy()


def estimate_client_epsilon(
    cosines: Floats, dimension: int, *, delta: float = 1e-5, confidence: float = 0.95
) -> RateEstimate:
    """Epsilon of the normal distribution fitted to the cosines (k,) against that of unseen directions.

    The estimate is for these canaries and this mechanism. It is neither a lower bound that holds with some probability
    nor an upper bound: other updates may be more exposed. With few canaries the fitted standard deviation alone
    makes epsilon positive: where nothing is revealed, delta = 1e-5 reads as 0.4 to 1.4 from 100 canaries and 0.1 to 0.4
    from 1,000.

    Args:
        cosines: of the canaries that were sent.
        dimension: d, of a model.
        delta: in (0, 1).
        confidence: of the interval of the mean.

    Returns:
        Epsilon, and what it is at the ends of the t-interval of the mean cosine, with the standard deviation as fitted.

    Raises:
        InputError: fewer than two cosines, all of them equal, no dimension, or a number outside its range.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import estimate_client_epsilon
        >>> draw, unseen = np.random.default_rng(1), 1 / np.sqrt(10_000)
        >>> hidden, seen = draw.normal(0.0, unseen, 1000), draw.normal(2 * unseen, unseen, 1000)
        >>> [round(estimate_client_epsilon(cosines, 10_000).value, 1) for cosines in (hidden, seen)]
        [0.3, 10.8]
    """
    shape = cosines.shape
    require(len(shape) == 1 and shape[0] >= 2, f"'cosines' must be at least 2 numbers (k,); got shape {shape}")
    require(dimension >= 1, f"'dimension' must be at least 1; got {dimension}")
    require(0 < confidence < 1, f"'confidence' must be above 0 and below 1; got {confidence:g}")
    mean, std = float(cosines.mean()), float(cosines.std(ddof=1))
    require(std > 0, "'cosines' must differ from each other; all are equal")
    least, most = mean_interval(cosines, confidence)
    # Only how far the mean is from 0 counts.
    means = (mean, max(0.0, least, -most), max(-least, most))
    return RateEstimate(*(epsilon_of_normals(0.0, 1 / np.sqrt(dimension), centre, std, delta) for centre in means))


def epsilon_of_normals(
    first_mean: float, first_std: float, second_mean: float, second_std: float, delta: float
) -> float:
    """The smallest epsilon >= 0 at which two normal distributions are (epsilon, delta)-indistinguishable, both ways.

    Raises:
        InputError: a standard deviation that is not above 0, or a delta outside (0, 1).

    >>> round(epsilon_of_normals(0.0, 1.0, 1.0, 1.0, 1e-5), 3)
    4.377
    """
    from scipy import optimize  # noqa: PLC0415 - takes half a second to import

    least = min(first_std, second_std)
    require(least > 0, f"standard deviations must be above 0; got {least:g}")
    require(0 < delta < 1, f"'delta' must be above 0 and below 1; got {delta:g}")
    first, second = (first_mean, first_std), (second_mean, second_std)

    def excess(epsilon: float) -> float:
        return max(hockey_stick(epsilon, first, second), hockey_stick(epsilon, second, first)) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.root_scalar(excess, bracket=(0.0, high), xtol=1e-10).root)


def hockey_stick(epsilon: float, p: tuple[float, float], q: tuple[float, float]) -> float:
    """The integral of max(0, p - e^epsilon q) of two normal densities, each a pair (mean, std).

    >>> round(hockey_stick(0.0, (1.0, 1.0), (-1.0, 1.0)), 4)
    0.6827
    """
    (mean, std), (other, other_std) = p, q
    # log p - log q - epsilon = a x^2 + b x + c is positive where p - e^epsilon q is; x in stds from p's mean.
    ratio, shift = std / other_std, (mean - other) / other_std
    a, b = (ratio**2 - 1) / 2, ratio * shift
    c = shift**2 / 2 - np.log(ratio) - epsilon
    total = 0.0
    for low, high in _positive(a, b, c):
        inside = _log_mass(low, high)
        # The same interval in standard deviations of q from its mean.
        outside = _log_mass(ratio * low + shift, ratio * high + shift)
        total += np.exp(inside) - np.exp(epsilon + outside)
    return float(max(0.0, total))


def _positive(a: float, b: float, c: float) -> list[tuple[float, float]]:
    """The intervals where a x^2 + b x + c is positive."""
    if abs(a) < 1e-12:
        if b == 0:
            return [(-np.inf, np.inf)] if c > 0 else []
        return [(-c / b, np.inf)] if b > 0 else [(-np.inf, -c / b)]
    root = b * b - 4 * a * c
    if root <= 0:
        return [(-np.inf, np.inf)] if a > 0 else []
    # Without the difference of two nearly equal numbers.
    half = -(b + np.copysign(np.sqrt(root), b)) / 2
    low, high = sorted((half / a, c / half if half else 0.0))
    return [(-np.inf, low), (high, np.inf)] if a > 0 else [(low, high)]


def _log_mass(low: float, high: float) -> float:
    """The logarithm of the standard normal probability of [low, high], exact in both tails."""
    from scipy.special import log_ndtr  # noqa: PLC0415 - takes half a second to import

    # In the upper half, by symmetry, so that no difference of numbers near 1 is taken.
    begin, end = (-high, -low) if low > 0 else (low, high)
    upper, lower = float(log_ndtr(end)), float(log_ndtr(begin))
    return upper + np.log1p(-np.exp(lower - upper)) if upper > lower else -np.inf


@dataclass(frozen=True)
class CanaryClients:
    """Clients that send a random direction instead of what training gives, through the server's filter like all others.

    One value does both: given as ``malicious_clients`` they send their directions, and as ``round_attack`` they are
    measured, so that a run's summary has ``canaries.client_epsilon``, and its table every canary's cosine. Their
    examples are never trained on; each sends the model of its cluster plus ``scale`` times its direction of
    `canary_directions`, the same in every round. Other figures of a run know nothing of that and count their examples
    as members: give them examples like those of the others, and leave membership inference to a run without them.

    Args:
        ids: of these clients.
        scale: L2 norm of what each sends; the norm to which the server clips, or the largest of an honest update.
        stream: of the directions.
        delta: of the estimate.

    Example:
        >>> import shoal
        >>> from shoal.attacks import CanaryClients
        >>> one = ([[-1.0] * 100, [1.0] * 100], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one] * 6, test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=100, classes=2))
        >>> canaries = CanaryClients((0, 1, 2), scale=1.0, stream=shoal.Stream(0))
        >>> toy = federation, model, shoal.FedAvg(), shoal.LocalSGD(), 1
        >>> simulation = shoal.Simulation(*toy, malicious_clients=canaries, round_attack=canaries)
        >>> result = shoal.Run(simulation).train()
        >>> (result.updates["cosine"] > 0.2).tolist(), result.summary.overall["canaries.client_epsilon"] > 10
        ([True, True, True], True)
    """

    name: ClassVar[str] = "client_canaries"
    columns: ClassVar[tuple[str, ...]] = ("client", "cluster", "cosine")
    metrics: ClassVar[tuple[Metric, ...]] = tuple(
        Metric(f"canaries.client_epsilon{end}", f"client canaries, epsilon{words}", _MEANING, scopes="run")
        for end, words in (("", ""), (".low", ", lower end"), (".high", ", upper end"))
    )

    ids: tuple[int, ...]
    scale: float
    stream: Stream
    delta: float = 1e-5
    __repr__ = one_line

    def __post_init__(self) -> None:
        require(len(self.ids) > 0, "'ids' must name at least one client; got none")
        require(0 < self.scale < np.inf, f"'scale' must be a finite number above 0; got {self.scale:g}")

    @property
    def clients(self) -> Tensor:
        """Ids (m,) int64."""
        return torch.tensor(self.ids)

    def start(self, state: State, stream: Stream) -> Tensors:
        """No memory."""
        del state, stream
        return {}

    def train(self, request: MaliciousTraining) -> tuple[Tensor, Tensors]:
        """The model of the cluster, moved by ``scale`` in the client's direction (P,)."""
        (direction,) = canary_directions([request.client], len(request.start), self.stream)
        return request.start + self.scale * direction.to(request.start), request.state.adversary

    def check(self, federation: Federation, algorithm: Algorithm) -> None:
        """Raise `InputError` unless at least two of them are clients of the federation."""
        del algorithm
        strangers = sorted({*self.ids} - {*federation.ids.tolist()})
        require(not strangers, f"'ids' must be of clients of the federation; {strangers[:1]} is not one")
        require(len(self.ids) >= 2, "an estimate needs at least 2 canary clients; got 1")

    def initial_memory(self, state: State) -> Tensors:
        """The models before training, (K, P)."""
        return {"start": state.models.clone()}

    def observe(
        self, before: State, after: State, report: RoundReport, memory: Tensors, training: Training
    ) -> tuple[Tensors, Tensors]:
        """Each canary's cluster and cosine with what its model has moved; NaN where that is nothing."""
        del before, report
        start, ids = memory["start"], training.federation.ids
        require(len(start) == len(after.models), "client canaries need a constant number of models")
        directions = canary_directions(self.ids, start.shape[1], self.stream)
        cluster = after.assignment[[int((ids == client).nonzero()) for client in self.ids]]
        cosine = torch.full((len(self.ids),), torch.nan, dtype=torch.float64)
        for i, k in enumerate(cluster.tolist()):
            if k >= 0 and not torch.equal(start[k], after.models[k]):
                cosine[i] = float(canary_cosines(directions[i : i + 1], start[k], after.models[k])[0])
        return {"cluster": cluster, "cosine": cosine, "dimension": torch.tensor(start.shape[1])}, memory

    def measure(
        self, observations: Mapping[int, Tensors], stream: Stream, *, jobs: int
    ) -> tuple[Summary, pd.DataFrame]:
        """The estimate after the last round, and a row per canary."""
        del stream, jobs
        last = observations[max(observations)]
        cosine = last["cosine"].numpy()
        epsilon = estimate_client_epsilon(cosine[~np.isnan(cosine)], int(last["dimension"]), delta=self.delta)
        values = {"": epsilon.value, ".low": epsilon.low, ".high": epsilon.high}
        table = pd.DataFrame({"client": self.ids, "cluster": last["cluster"].numpy(), "cosine": cosine})
        return Summary(overall={f"canaries.client_epsilon{end}": value for end, value in values.items()}), table
