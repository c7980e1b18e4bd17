"""Conversion of updates and histograms to blocks of integers, and of summed blocks back to numbers."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.algorithms import CoordinateMedian, MultiKrum, TrimmedMean
from shoal.config.schema import Config, SecureAggregationSection
from shoal.core.errors import require
from shoal.engine import ClientUpdate
from shoal.metrics.intervals import Floats
from shoal_flower.messages import Offer, parts_of
from shoal_flower.secure_sums.protocol_messages import RefusedError

_FINE = 2.0**-18
"""The largest step for which rounding changes a mean by at most 1.9e-6, half a step."""


@dataclass(frozen=True)
class FixedPoint:
    """A format of fixed-point numbers in [-bound, bound] whose sum over all clients does not overflow ``bits`` bits.

    Args:
        bits: the number of bits, 32 or 64.
        step: the number that the integer 1 encodes.
        bound: the limit at which numbers are clipped.

    >>> numbers = FixedPoint.of_sums(clients=20, bound=10.0)
    >>> total = sum(numbers.encode(np.array([x])) for x in (0.5, -1.25, -7.0))
    >>> numbers.bits, np.round(numbers.decode(total), 6).tolist()
    (32, [-7.75])
    """

    bits: int
    step: float
    bound: float

    @staticmethod
    def of_sums(clients: int, bound: float, integers: int = 0) -> "FixedPoint":
        """Return the format for sums over clients, with 32 bits if 32 bits are precise enough, otherwise with 64 bits.

        Args:
            integers: the largest integer that a client adds to the sum.
        """
        for bits in (32, 64):
            # Rounding, including floating point, may use a thousandth of the range.
            step = clients * bound / (0.999 * 2.0 ** (bits - 1))
            if bits == 64 or (step <= _FINE and clients * integers < 2**31):
                break
        return FixedPoint(bits, step, bound)

    @property
    def dtype(self) -> np.dtype:
        """The type of encoded numbers, little-endian."""
        return np.dtype(f"<u{self.bits // 8}")

    def encode(self, values: NDArray[np.float64], *, clipped: bool = True) -> NDArray:
        """Encode ``values`` as the nearest multiples of the step.

        Without ``clipped``, values may exceed the bound, and their sum is still exact modulo 2^bits.
        """
        bound = self.bound if clipped else 2.0**62 * self.step
        units = np.rint(np.clip(values, -bound, bound) / self.step)
        return units.astype(np.int64).astype(self.dtype)

    def decode(self, total: NDArray) -> NDArray[np.float64]:
        """Decode the sum ``total`` of encoded numbers."""
        return total.astype(self.dtype).view(f"<i{self.bits // 8}") * self.step


HISTOGRAMS = np.dtype("<u4")
"""The type of a histogram's integers; sums are modulo 2^32."""


def check_summable(config: Config) -> SecureAggregationSection:
    """Return the section [secure_aggregation] of a run that needs only sums over clients.

    Raises:
        InputError: the section is missing, or the run needs single clients' numbers.
    """
    section, where = config.secure_aggregation, "with [secure_aggregation]"
    require(section is not None, "[secure_aggregation] is missing; add the section to the configuration")
    assert section is not None
    name, parts = config.algorithm.name, parts_of(config.algorithm.value)
    require(
        parts.choice == "client",
        f"'algorithm.name' must be an algorithm whose clients choose a cluster {where} (got {name}), such as ifca",
    )
    weighs_by_examples(config)
    require(config.coordinator is None, f"[coordinator] is not allowed {where}; remove the section")
    require(
        config.defenses.norm_clipping is None,
        f"[defenses.norm_clipping] is not allowed {where}; use 'secure_aggregation.max_update_norm'",
    )
    rule = config.defenses.dp_sgd
    least = 1 if rule is None else rule.min_clients or 1
    require(
        least <= section.min_clients,
        f"'secure_aggregation.min_clients' must be at least 'defenses.dp_sgd.min_clients' = {least} "
        f"(got {section.min_clients})",
    )
    return section


def weighs_by_examples(config: Config) -> bool:
    """Return whether clients of a cluster are weighted by their numbers of examples.

    Raises:
        InputError: the algorithm has no 'weighting'.
    """
    part: object = parts_of(config.algorithm.value).server
    while part is not None and not hasattr(part, "weighting"):
        require(
            not isinstance(part, CoordinateMedian | TrimmedMean | MultiKrum),
            f"'algorithm.name' must not compare single updates with [secure_aggregation] (got {config.algorithm.name})",
        )
        part = getattr(part, "inner", getattr(part, "base", None))
    require(part is not None, f"'algorithm.name' must be an algorithm with 'weighting' (got {config.algorithm.name})")
    return getattr(part, "weighting") == "examples"  # noqa: B009 - only known at run time


def numbers_of(config: Config, clients: int) -> FixedPoint:
    """Return the number format of an update's block in a sum over ``clients`` clients."""
    section = check_summable(config)
    largest = section.max_examples if weighs_by_examples(config) else 1
    return FixedPoint.of_sums(clients, section.max_update_norm * largest, section.max_examples)


def update_block(update: ClientUpdate, models: Tensor, config: Config, clients: int) -> NDArray:
    """Encode an update as a block (1 + P,): the number of examples, and the weighted and clipped update.

    The function never fails, because a failure would reveal something about the data. An update that is not finite
    counts as 0. An update with a fraction of the sum's noise is not clipped, because clipping would reduce the noise.
    """
    section, numbers = check_summable(config), numbers_of(config, clients)
    move = (update.end.double() - models[update.cluster].double()).numpy()
    norm, rule = float(np.linalg.norm(move)), config.defenses.dp_sgd
    shared = rule is not None and rule.noise == "sum"
    if not np.isfinite(norm):
        move = np.zeros_like(move)
    elif norm > section.max_update_norm and not shared:
        move *= section.max_update_norm / norm
    examples = min(update.examples, section.max_examples)
    weight = examples if weighs_by_examples(config) else 1
    encoded = numbers.encode(weight * move, clipped=not shared)
    return np.concatenate([np.array([examples], numbers.dtype), encoded])


def summed_update(block: NDArray, members: int, config: Config, clients: int) -> tuple[int, Tensor]:
    """Return a cluster's number of examples and its clients' mean update (P,) float64.

    Args:
        members: the number of clients in the cluster.
        clients: the number of clients in the sum.

    Raises:
        RefusedError: the sum is impossible for honest clients.
    """
    section, examples, numbers = check_summable(config), int(block[0]), numbers_of(config, clients)
    weight = examples if weighs_by_examples(config) else members
    if not members <= examples <= members * section.max_examples:
        raise RefusedError(
            f"{members} clients must have 1 to {section.max_examples} examples each (got {examples} in total)"
        )
    mean = torch.from_numpy(numbers.decode(block[1:]) / weight)
    # Rounding changes each number of the mean by at most half a step.
    reachable, norm = section.max_update_norm + numbers.step * len(mean) ** 0.5, float(mean.norm())
    if not norm <= reachable:
        raise RefusedError(
            f"the norm of a mean update must be at most 'secure_aggregation.max_update_norm' = "
            f"{section.max_update_norm:g} (got {norm:.4g}); a client lies, or the noise needs a larger limit"
        )
    return examples, mean


def histogram_block(counts: Floats) -> NDArray:
    """Encode a client's histograms (2, B) as a block."""
    return np.rint(counts).astype(np.int64).astype(HISTOGRAMS).ravel()


def summed_histograms(block: NDArray) -> Floats:
    """Decode the sum of the clients' blocks to the histograms (2, B) of members and of hold-out examples."""
    return block.view("<i4").astype(np.float64).reshape(2, -1)


def models_digest(models: Tensor) -> str:
    """Return a digest of models (K, P), to recognise sums over the same models."""
    numbers = models.detach().cpu().contiguous().numpy().astype("<f4")
    return hashlib.sha256(str(numbers.shape).encode() + numbers.tobytes()).hexdigest()


def offer_digest(offer: Offer) -> bytes:
    """Return a digest of the parts of an offer that are equal for all clients."""
    directives = {name: values.tolist() for name, values in sorted(offer.directives.items())}
    scale = None if offer.scale is None else vars(offer.scale)
    known = [list(offer.classes), scale, offer.features, offer.frozen]
    header = [offer.round, offer.config, offer.risks.tolist(), directives, *known]
    text = json.dumps([*header, models_digest(offer.models)], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).digest()
