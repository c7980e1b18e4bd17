"""What clients add up: an update or histograms as a block of integers, and what the server makes of the sums."""

import hashlib
import json

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.algorithms import CoordinateMedian, MultiKrum, TrimmedMean
from shoal.config.schema import Config, SecureAggregationSection
from shoal.core.errors import require
from shoal.deployment.messages import Offer, parts_of
from shoal.deployment.secure_sums.fixed_point import FixedPoint
from shoal.deployment.secure_sums.protocol_messages import RefusedError
from shoal.engine import ClientUpdate
from shoal.metrics.intervals import Floats

HISTOGRAMS = np.dtype("<u4")
"""The integers of histograms, modulo 2^32."""


def check_summable(config: Config) -> SecureAggregationSection:
    """The section of secure aggregation of a run whose clients need send nothing but sums.

    Raises:
        InputError: it has none, or it needs what a single client sends.
    """
    section, where = config.secure_aggregation, "with [secure_aggregation]"
    require(section is not None, "[secure_aggregation] is missing: the run's server asks for single updates")
    assert section is not None
    name, parts = config.algorithm.name, parts_of(config.algorithm.value)
    require(
        parts.choice == "client",
        f"'algorithm.name' must be one whose clients choose a cluster and average in it {where}, such as ifca or "
        f"fedavg; {name} needs what single clients send",
    )
    weighs_by_examples(config)
    require(config.coordinator is None, f"[coordinator] must be left out {where}, since it asks single clients")
    require(
        config.defenses.norm_clipping is None,
        f"[defenses.norm_clipping] must be left out {where}: the server sees no single update, and clients clip theirs "
        "to 'secure_aggregation.max_update_norm'",
    )
    rule = config.defenses.dp_sgd
    least = 1 if rule is None else rule.min_clients or 1
    require(
        least <= section.min_clients,
        f"'secure_aggregation.min_clients' must be at least that of [defenses.dp_sgd], by which clients share the "
        f"noise; got {section.min_clients}",
    )
    return section


def weighs_by_examples(config: Config) -> bool:
    """Whether clients of a cluster weigh by their numbers of examples; otherwise they weigh alike.

    Raises:
        InputError: the algorithm does not say.
    """
    part: object = parts_of(config.algorithm.value).server
    while part is not None and not hasattr(part, "weighting"):
        require(
            not isinstance(part, CoordinateMedian | TrimmedMean | MultiKrum),
            f"'algorithm.name' cannot be {config.algorithm.name} with [secure_aggregation]: it compares single "
            "updates, which the server does not see",
        )
        part = getattr(part, "inner", getattr(part, "base", None))
    require(part is not None, f"'algorithm.name': {config.algorithm.name} has no 'weighting' of clients in a sum")
    return getattr(part, "weighting") == "examples"  # noqa: B009 - only known at run time


def numbers_of(config: Config, clients: int) -> FixedPoint:
    """The form of the numbers of an update's block, in a sum of so many ``clients``."""
    section = check_summable(config)
    largest = section.max_examples if weighs_by_examples(config) else 1
    return FixedPoint.of_sums(clients, section.max_update_norm * largest, section.max_examples)


def update_block(update: ClientUpdate, models: Tensor, config: Config, clients: int) -> NDArray:
    """The block (1 + P,) of an update: number of examples, and the weighted and clipped update.

    Raises:
        RefusedError: it is not finite, or clipping would take away noise that others rely on.
    """
    section, numbers = check_summable(config), numbers_of(config, clients)
    move = (update.end.double() - models[update.cluster].double()).numpy()
    norm, rule = float(np.linalg.norm(move)), config.defenses.dp_sgd
    if not np.isfinite(norm):
        raise RefusedError("the update has numbers that are not finite")
    if norm > section.max_update_norm:
        if rule is not None and rule.noise == "sum":
            raise RefusedError(
                f"the update's norm is {norm:.4g}, above 'secure_aggregation.max_update_norm' = "
                f"{section.max_update_norm:g}: clipped, its share of the sum's noise would be too small"
            )
        move *= section.max_update_norm / norm
    examples = min(update.examples, section.max_examples)
    weight = examples if weighs_by_examples(config) else 1
    return np.concatenate([np.array([examples], numbers.dtype), numbers.encoded(weight * move)])


def summed_update(block: NDArray, members: int, config: Config, clients: int) -> tuple[int, Tensor]:
    """The number of examples of a cluster's ``members``, and their mean update (P,), float64, from the block's sum."""
    examples, numbers = int(block[0]), numbers_of(config, clients)
    weight = examples if weighs_by_examples(config) else members
    if not members <= examples:
        raise RefusedError(f"{examples} examples of {members} clients: one sends what it should not")
    return examples, torch.from_numpy(numbers.decoded(block[1:]) / weight)


def histogram_block(counts: Floats, half: int) -> NDArray:
    """The block of a client's histograms (2, B), in the ``half`` of the clients that it is in, 0 or 1."""
    halves = np.zeros((2, *counts.shape), np.int64)
    halves[half] = np.rint(counts)
    return halves.astype(HISTOGRAMS).ravel()


def summed_histograms(block: NDArray) -> Floats:
    """The histograms (2, 2, B) of the clients of each half, of members and of hold-outs, from the block's sum."""
    return block.view("<i4").astype(np.float64).reshape(2, 2, -1)


def offer_digest(offer: Offer) -> bytes:
    """A digest of what every client is offered alike."""
    directives = {name: values.tolist() for name, values in sorted(offer.directives.items())}
    scale = None if offer.scale is None else vars(offer.scale)
    known = [list(offer.classes), scale, offer.features, offer.frozen]
    header = [offer.round, offer.config, offer.risks.tolist(), directives, *known]
    text = json.dumps(header, sort_keys=True, default=list).encode()
    models = offer.models.detach().cpu().contiguous().numpy()
    return hashlib.sha256(text + str(models.shape).encode() + models.astype("<f4").tobytes()).digest()
