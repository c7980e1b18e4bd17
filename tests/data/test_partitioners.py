"""Hugging Face datasets with a client column, and partitioners of flwr-datasets, by their protocol."""

from types import SimpleNamespace

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value

from shoal.core.errors import InputError
from shoal.data import Columns, Federation

PICTURE = Columns(client="user", label="label", inputs=("image",))


@pytest.fixture
def dataset():
    """Twelve grey pictures of three users, of 4x5 pixels, all of one value."""
    from PIL import Image as Pillow  # noqa: PLC0415 - an extra

    rows = {
        "image": [Pillow.new("L", (5, 4), 20 * i) for i in range(12)],
        "label": [i % 2 for i in range(12)],
        "user": ["b", "a", "c"] * 4,
    }
    features = Features({"image": Image(), "label": ClassLabel(names=["no", "yes"]), "user": Value("string")})
    return Dataset.from_dict(rows, features=features)


class Thirds:
    """A partitioner by its protocol: the rows i, i + 3, i + 6 and so on."""

    num_partitions = 3

    def __init__(self, dataset):
        self.dataset = dataset

    def load_partition(self, number):
        return self.dataset.select(range(number, len(self.dataset), 3))


class Splits:
    """A `FederatedDataset`, whose partitioner has no data until the first partition is loaded."""

    def __init__(self, dataset, *splits):
        self._dataset, self.partitioners = dataset, {split: Thirds(None) for split in splits}

    def load_partition(self, number, split):
        self.partitioners[split].dataset = self._dataset
        return self.partitioners[split].load_partition(number)


def test_a_column_of_a_dataset_names_the_clients_of_pictures(dataset):
    federation = Federation.from_table(dataset, PICTURE, test=dataset)
    assert (federation.names, federation.clients.sizes.tolist()) == (("b", "a", "c"), [4, 4, 4])
    first = federation.clients.x[federation.clients.indices_of(0)]
    assert first.shape == (4, 1, 4, 5)
    torch.testing.assert_close(first[:, 0, 0, 0], torch.tensor([0.0, 60, 120, 180]) / 255)
    assert federation.clients.y[federation.clients.indices_of(0)].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("wrapped", [Thirds, lambda dataset: Splits(dataset, "train")], ids=["partitioner", "splits"])
def test_partitions_are_clients_and_a_test_set_needs_no_column(dataset, wrapped):
    by_column = Federation.from_table(dataset, PICTURE, test=dataset)
    rows = dataset.remove_columns("user")
    columns = Columns(client="partition", label="label", inputs=("image",))
    federation = Federation.from_table(wrapped(rows), columns, test=rows, shadow=rows)
    assert federation.names == ("0", "1", "2")
    for i in range(3):
        mine, theirs = federation.clients.indices_of(i), by_column.clients.indices_of(i)
        assert torch.equal(federation.clients.x[mine], by_column.clients.x[theirs])
        assert torch.equal(federation.clients.y[mine], by_column.clients.y[theirs])
    assert (len(federation.test), len(federation.shadow)) == (12, 12)


def test_what_does_not_fit_is_one_sentence(dataset):
    with pytest.raises(InputError, match="'user'"):
        Federation.from_table(Thirds(dataset), PICTURE, test=dataset)
    with pytest.raises(InputError, match="got 2 splits"):
        Federation.from_table(Splits(dataset, "train", "test"), PICTURE, test=dataset)
    with pytest.raises(InputError, match="no column 'user'"):
        Federation.from_table(dataset.remove_columns("user"), PICTURE, test=dataset)
    with pytest.raises(InputError, match="got SimpleNamespace"):
        Federation.from_table(SimpleNamespace(), PICTURE, test=dataset)
