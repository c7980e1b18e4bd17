"""A federation with two models."""

import pytest
import torch

from shoal.core.randomness import Stream
from shoal.engine import Engine, State


@pytest.fixture
def clustered(mlp, build):
    """Two models, chosen by the first two clients and by the others; the federation; an engine.

    The stream is one whose first model answers with every class, and whose losses all differ.
    """
    federation = build()
    models = torch.stack([mlp.init(Stream(3)(k)) for k in range(2)])
    state = State(5, models, torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([0, 0, 1, 1, 1, 1]))
    with Engine(mlp) as engine:
        yield state, federation, engine
