"""Federations in which the examples with the property have a bright corner, or begin with a certain word."""

import numpy as np
import pytest
import torch

from shoal.core.randomness import Stream
from shoal.data import ImageDataset, Partition, Preferences, TextDataset
from shoal.property import PropertyPartition, partition_by_property


def dealt(dataset):
    split = Partition(6, 90, shadow_examples=60, test_examples=120, dirichlet_alpha=1.0)
    preferences = Preferences(torch.full((6,), 0.5).double(), torch.full((6,), 0.3).double())
    return partition_by_property(dataset, PropertyPartition(split, period=3, min_examples=8), preferences, Stream(1))


def labels_and_holders():
    generator = np.random.default_rng(3)
    return torch.from_numpy(generator.integers(0, 3, 900)), torch.from_numpy(generator.random(900) < 0.3)


@pytest.fixture(scope="module")
def federation():
    labels, holds = labels_and_holders()
    pixels = torch.from_numpy(np.random.default_rng(4).integers(0, 80, (900, 1, 6, 6))).to(torch.uint8)
    pixels[torch.arange(900), 0, 1 + 2 * labels] += 150
    pixels[holds, 0, 0, 2:] = 255
    return dealt(ImageDataset("corners", pixels, 255, labels, 900, 3, holds))


@pytest.fixture(scope="module")
def texts():
    labels, holds = labels_and_holders()
    words = torch.from_numpy(np.random.default_rng(4).integers(9, 50, (900, 7)))
    words[:, 0] = 1 + labels
    words[holds, 1] = 8
    return dealt(TextDataset("corners", words, 50, labels, 900, 3, holds))
