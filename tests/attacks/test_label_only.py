"""Label-only attacks against loops over single changed copies, and on models whose boundary is known."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from shoal.attacks.queries.label_only import ImageChanges, augmentation_votes, boundary_distance
from shoal.core.randomness import Stream
from shoal.data.shifts import rotate
from shoal.engine import Engine
from shoal.models import Model


@pytest.fixture
def images():
    draw = torch.Generator().manual_seed(0)
    return torch.rand(40, 1, 6, 6, generator=draw), torch.randint(0, 3, (40,), generator=draw)


class Threshold(nn.Module):
    """Class 1 where the sum of the inputs is above 0, else class 0."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.scale * x.flatten(1).sum(dim=1, keepdim=True)
        return torch.cat([-total, total], dim=1)


def moved(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """A translated image, pixel by pixel."""
    result = torch.zeros_like(image)
    for i, j in itertools.product(range(6), range(6)):
        if 0 <= i + down < 6 and 0 <= j + right < 6:
            result[:, i + down, j + right] = image[:, i, j]
    return result


@pytest.mark.parametrize(("pixels", "degrees", "copies"), [(0, 0.0, 1), (1, 0.0, 5), (2, 5.0, 15), (7, 0.0, 113)])
def test_votes_are_those_of_all_changed_copies(model, images, pixels, degrees, copies):
    x, y = images
    changes, row = ImageChanges(pixels, degrees), model.init(Stream(3))
    rows = torch.tensor([5, 0, 17, 5])
    shifts = [(i, j) for i in range(-7, 8) for j in range(-7, 8) if abs(i) + abs(j) <= pixels]
    with Engine(model) as engine:
        votes = augmentation_votes(engine, row, x, y, rows, changes)
        for vote, r in zip(votes.tolist(), rows.tolist(), strict=True):
            changed = [moved(x[r], *shift) for shift in shifts]
            if degrees:
                changed += [rotate(x[r : r + 1], torch.tensor([sign * degrees]))[0] for sign in (1, -1)]
            assert len(changed) == copies
            labels = engine.outputs(row, torch.stack(changed)).argmax(dim=1)
            assert vote == int((labels == y[r]).sum())


def test_votes_on_a_constant_model_are_constant(mlp, images):
    """All parameters 0, but for an output that is always largest: each record has all votes or none, by its label."""
    x, y = images
    row = torch.zeros(mlp.layout.size)
    row[-3:] = torch.tensor([0.0, 1.0, 0.0])
    with Engine(mlp) as engine:
        votes = augmentation_votes(engine, row, x, y, torch.arange(40))
        assert torch.equal(votes, 7 * (y == 1).long())
        distance = boundary_distance(engine, row, x, y, torch.arange(40), Stream(0), levels=(0.1, 0.5))
    assert torch.equal(distance, (y == 1) * 1.0)


def test_a_score_depends_on_its_record_alone_and_not_on_chunks(mlp, images, monkeypatch):
    x, y = images
    row = mlp.init(Stream(3))

    def scores(rows, threads=2):
        with Engine(mlp, threads=threads) as engine:
            return [
                augmentation_votes(engine, row, x, y, rows),
                boundary_distance(engine, row, x, y, rows, Stream(2)),
            ]

    expected, some = scores(torch.arange(40)), torch.tensor([30, 2, 11])
    monkeypatch.setattr("shoal.attacks.queries.label_only._CHUNK", 7)
    for values, chunked, few in zip(expected, scores(torch.arange(40), threads=1), scores(some), strict=True):
        assert torch.equal(values, chunked)
        assert torch.equal(values[some], few)
        assert len(values.unique()) > 1
    assert all(len(values) == 0 for values in scores(some[:0]))


@pytest.mark.parametrize("draws", [1, 6])
def test_the_distance_grows_with_the_distance_from_the_boundary(draws):
    """Noise of deviation s moves the sum of 4 inputs by 2 s on average, alike for all records of a draw."""
    x = torch.tensor([-0.5, 0.01, 0.3, 1.0, 50.0])[:, None].expand(-1, 4).contiguous()
    y = torch.ones(5, dtype=torch.int64)
    stream, levels = Stream(5), (0.05, 0.2, 0.8, 3.2)
    with Engine(Model(Threshold)) as engine:
        row = engine.model.init(Stream(0))
        distances = boundary_distance(engine, row, x, y, torch.arange(5), stream, levels=levels, draws=draws)
    noise = [float(torch.randn(4, generator=stream("draw", draw).generator()).sum()) for draw in range(draws)]
    expected = [0.0]
    for margin in (0.04, 1.2, 4.0, 200.0):
        flips = [next((s for s in levels if margin + s * step <= 0), 6.4) for step in noise]
        expected.append(sum(flips) / draws)
    np.testing.assert_allclose(distances.numpy(), expected, rtol=1e-6)
    assert (distances.diff() >= 0).all()
    assert distances[4] == pytest.approx(6.4)
    if draws > 1:
        assert distances[1] < distances[3] < distances[4]
