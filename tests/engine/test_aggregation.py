"""The formula by which models move, against float64 by hand, however clients are divided into partial sums."""

import pytest
import torch

from shoal.core.randomness import Stream
from shoal.engine.rounds.cohort_trainer import Aggregator


def moved(models, weights, ends, parts):
    aggregator = Aggregator(models, weights)
    for clients in parts:
        aggregator.add(aggregator.partial_sum(clients, ends[clients]))
    return aggregator.result()


@pytest.mark.parametrize("size", [1, 3, 12])
def test_aggregated_models_do_not_depend_on_the_partial_sums(size):
    draw = Stream(0).generator()
    models, ends = torch.randn(3, 5, generator=draw), torch.randn(12, 5, generator=draw)
    weights = torch.rand(3, 12, generator=draw, dtype=torch.float64)
    # Rows sum to 1, to less, and to 0: one model moves all the way, one in part, and one stays.
    weights *= torch.tensor([[1.0], [0.4], [0.0]]) / weights.sum(dim=1, keepdim=True)
    expected = models.double() + torch.stack(
        [row @ (ends.double() - k) for row, k in zip(weights, models.double(), strict=True)]
    )
    found = moved(models, weights, ends, torch.arange(12).split(size))
    torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(found[2], models[2])


def test_sums_of_many_clients_lose_no_digits():
    """Client after client, float32 would be off by about 1e-5."""
    count = 3000
    found = moved(
        torch.zeros(1, 1), torch.full((1, count), 1 / count), torch.ones(count, 1), torch.arange(count).split(1)
    )
    assert float(found) == pytest.approx(1.0, abs=2e-7)
