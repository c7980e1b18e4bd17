"""A configuration, and a user's modules beside it."""

import sys

import pytest

BASE = """
seed = 3
[data]
source = "digits"
clients = 10
examples_per_client = 20
shadow_examples = 100
test_examples = 60
[data.groups.minority]
share = 0.2
rotation = [0, 25]
[data.groups.majority]
share = 0.8
rotation = [25, 50.5]
[model]
name = "mlp"
[algorithm]
name = "ifca-mir"
clusters = 2
rounds = 4
[local]
epochs = 2
batch_size = 10
learning_rate = 0.1
"""
MODULE = '''
from typing import ClassVar

import torch
from shoal import ImageDataset, L2, FedAvg
from shoal.attacks import Gap
from shoal.core.settings import Positive, settings
from shoal.engine import Algorithm

@settings
class Mine(FedAvg):
    """FedAvg."""
    strength: Positive = 1

@settings
class Titled(FedAvg):
    title: ClassVar[str] = "Averages of mine"

@settings
class Wrapper(FedAvg):
    base: Algorithm = FedAvg()

@settings
class Guess(Gap):
    pass

@settings
class Weak(L2):
    pass

def plain():
    return FedAvg()

class Unsettled:
    pass

@settings
class Idle:
    pass

class Net(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.output = torch.nn.Linear(shape.inputs, shape.classes)

    def forward(self, x):
        return self.output(x.flatten(1))

def random_images(path, task):
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (400, 1, 6, 6), generator=draw, dtype=torch.uint8)
    return ImageDataset("mine", pixels, 255, torch.arange(400) % 3, 400, 3)

def nothing(path, task):
    return path, task

def failing(path, task):
    return {"x": 1}["y"]
'''


@pytest.fixture
def base(tmp_path):
    """The file of a configuration."""
    path = tmp_path / "base.toml"
    path.write_text(BASE)
    return path


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a user's module ``own`` and others that are wrong, which is the current directory."""
    (tmp_path / "own.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import torch\nnonsense(")
    (tmp_path / "raising.py").write_text("one = 1\none / 0\n")
    (tmp_path / "needing.py").write_text("import nowhere\n")
    (tmp_path / "elsewhere.py").write_text("from own import Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("own", "broken", "elsewhere"):
        sys.modules.pop(name, None)
