"""The drawn faces and made-up reviews of the property inference experiments, read as a configuration reads them."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from experiment_scripts import EXPERIMENTS
from shoal.config.build import load_source
from shoal.core.errors import InputError
from shoal.data import ImageDataset, LabelledDataset, TextDataset


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(EXPERIMENTS / "property")


def generated(kind: str, task: str) -> LabelledDataset:
    data = load_source(f"synthetic_{kind}:generate_{kind}", task=task)
    assert isinstance(data, LabelledDataset)
    return data


def holds(kind: str, task: str) -> Tensor:
    """The mask of the examples with a task's property."""
    mask = generated(kind, task).has_property
    assert mask is not None
    return mask


@pytest.mark.parametrize(
    ("kind", "task", "count", "classes"),
    [("faces", "tone/sunglasses", 6000, 3), ("faces", "smiling", 6000, 2), ("reviews", "score/author-4", 8000, 5)],
)
def test_the_set_is_what_its_docstring_says(kind, task, count, classes):
    data = generated(kind, task)
    assert (data.name, len(data.labels), data.train_count, data.classes) == (kind, count, count, classes)
    assert len(data.labels.bincount()) == classes
    assert (data.has_property is None) == ("/" not in task)
    if isinstance(data, ImageDataset):
        assert (data.pixels.shape, data.pixels.dtype) == ((count, 3, 62, 47), torch.uint8)
    else:
        assert isinstance(data, TextDataset)
        assert data.words.shape == (count, 40)
        assert data.words.unique().tolist() == list(range(data.vocabulary + 1)), "every number is some word's"
    with pytest.raises(InputError, match=f"'task' .*{kind}.* did you mean"):
        generated(kind, f"{task}x" if kind == "reviews" else f"s{task}")


def test_attributes_of_faces_have_their_shares_are_independent_and_can_be_seen():
    # A share of 6,000 draws is within 0.013 of its probability in 95 of 100 cases, a correlation within 0.026.
    tasks = {"long-hair/sunglasses": 0.2, "tone/hat": 0.2, "hat/dark-tone": 1 / 3, "hat/smiling": 0.5}
    masks = [holds("faces", task).double() for task in [*tasks, "hat/bright-background"]]
    assert [float(mask.mean()) for mask in masks] == pytest.approx([*tasks.values(), 0.5], abs=0.02)
    for pair in combinations([*masks, generated("faces", "long-hair").labels.double()], 2):
        assert abs(float(torch.corrcoef(torch.stack(pair))[0, 1])) < 0.04
    faces, sunglasses = generated("faces", "smiling"), masks[0].bool()
    assert isinstance(faces, ImageDataset)
    eyes = faces.pixels[:, :, 26:34, 13:34].double().mean((1, 2, 3))
    assert float(eyes[sunglasses].mean()) < 0.75 * float(eyes[~sunglasses].mean())
