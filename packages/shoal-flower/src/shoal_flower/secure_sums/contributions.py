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
from shoal.engine import ClientUpdate
from shoal.metrics.intervals import Floats
from shoal_flower.messages import Offer, parts_of
from shoal_flower.secure_sums.fixed_point import FixedPoint
from shoal_flower.secure_sums.protocol_messages import RefusedError

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

    It never fails, since a failure would tell the server about the data. An update that is not finite counts as none.
    An update with a share of the sum's noise is not clipped, which would make the share too small.
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
    encoded = numbers.encoded(weight * move, clipped=not shared)
    return np.concatenate([np.array([examples], numbers.dtype), encoded])


def summed_update(block: NDArray, members: int, config: Config, clients: int) -> tuple[int, Tensor]:
    """The number of examples of a cluster's ``members``, and their mean update (P,), float64, from the block's sum.

    Raises:
        RefusedError: honest clients cannot have sent this sum.
    """
    section, examples, numbers = check_summable(config), int(block[0]), numbers_of(config, clients)
    weight = examples if weighs_by_examples(config) else members
    if not members <= examples <= members * section.max_examples:
        raise RefusedError(
            f"{examples} examples from {members} clients with 1 to {section.max_examples} each: one client lies"
        )
    mean = torch.from_numpy(numbers.decoded(block[1:]) / weight)
    # Rounding moves each number of the mean by at most half a step.
    reachable, norm = section.max_update_norm + numbers.step * len(mean) ** 0.5, float(mean.norm())
    if not norm <= reachable:
        raise RefusedError(
            f"a mean update of norm {norm:.4g}, above 'secure_aggregation.max_update_norm' = "
            f"{section.max_update_norm:g}: one client lies, or the noise is too large for this limit"
        )
    return examples, mean


def histogram_block(counts: Floats) -> NDArray:
    """The block of a client's histograms (2, B)."""
    return np.rint(counts).astype(np.int64).astype(HISTOGRAMS).ravel()


def summed_histograms(block: NDArray) -> Floats:
    """The histograms (2, B), of members and of hold-outs, from the block's sum."""
    return block.view("<i4").astype(np.float64).reshape(2, -1)


def models_digest(models: Tensor) -> str:
    """A digest of models (K, P), by which sums over the same models are known."""
    numbers = models.detach().cpu().contiguous().numpy().astype("<f4")
    return hashlib.sha256(str(numbers.shape).encode() + numbers.tobytes()).hexdigest()


def offer_digest(offer: Offer) -> bytes:
    """A digest of what every client is offered alike."""
    directives = {name: values.tolist() for name, values in sorted(offer.directives.items())}
    scale = None if offer.scale is None else vars(offer.scale)
    known = [list(offer.classes), scale, offer.features, offer.frozen]
    header = [offer.round, offer.config, offer.risks.tolist(), directives, *known]
    text = json.dumps([*header, models_digest(offer.models)], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).digest()
