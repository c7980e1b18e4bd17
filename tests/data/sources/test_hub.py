import sys

import datasets
import numpy as np
import pytest
from PIL import Image

from refused_input import refused
from shoal.core.errors import InputError
from shoal.data.sources.catalog import SOURCES, fetch, load_dataset

RNG = np.random.default_rng(2)


def random_images(count, shape=(28, 28), top=256):
    return RNG.integers(0, top, (count, *shape), dtype=np.uint8)


def split(values, labels, image="image", label="label", kind="int64"):
    features = datasets.Features(
        {image: datasets.Image(), label: datasets.Value(kind), "other": datasets.Value("string")}
    )
    return datasets.Dataset.from_dict(
        {image: [Image.fromarray(v) for v in values], label: labels, "other": ["x"] * len(labels)}, features=features
    )


GREY = random_images(6)


@pytest.fixture
def hub(monkeypatch):
    """A hub without a network: what `datasets.load_dataset` answers, and the requests it got."""
    splits, requests = {}, []

    def load_dataset(repository, *, split):
        requests.append((repository, split))
        if isinstance(splits[split], Exception):
            raise splits[split]
        return splits[split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return splits, requests


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_fetched_grey_sets_are_read_back(tmp_path, hub, name):
    splits, requests = hub
    splits |= {"train": split(GREY[:4], [9, 0, 1, 2]).with_format("torch"), "test": split(GREY[4:], [1, 2])}
    folder = fetch(name, tmp_path / "cache")
    assert folder == tmp_path / "cache" / name
    assert requests == [(SOURCES[name].hub.repository, "train"), (SOURCES[name].hub.repository, "test")]
    images = load_dataset(name, data_dir=tmp_path / "cache")
    np.testing.assert_array_equal(images.pixels[:, 0].numpy(), GREY)
    assert images.labels.tolist() == [9, 0, 1, 2, 1, 2]
    assert images.train_count == 4
    assert len(list(folder.iterdir())) == 4  # and nothing temporary


def test_fetched_cifar10_is_read_back(tmp_path, hub):
    splits, _ = hub
    colour, test = random_images(12, (32, 32, 3)), random_images(2, (32, 32, 3))
    labels = [*range(10), 0, 1]
    splits |= {"train": split(colour, labels, "img"), "test": split(test, [9, 8], "img")}
    fetch("cifar10", tmp_path)
    images = load_dataset("cifar10", data_dir=tmp_path)
    np.testing.assert_array_equal(images.pixels.permute(0, 2, 3, 1).numpy(), np.concatenate([colour, test]))
    assert images.labels.tolist() == [*labels, 9, 8]
    assert images.train_count == 12


@pytest.mark.parametrize("dark_on_white", [False, True])
def test_fetched_femnist_is_upright_light_on_black_and_all_training(tmp_path, hub, dark_on_white):
    splits, requests = hub
    strokes = random_images(4, top=100)
    stored = 255 - strokes if dark_on_white else strokes
    splits["train"] = split(stored, [0, 61, 35, 36], label="character")
    folder = fetch("emnist-byclass", tmp_path)
    assert requests == [("flwrlabs/femnist", "train")]
    images = load_dataset("emnist-byclass", data_dir=tmp_path)
    np.testing.assert_array_equal(images.pixels[:, 0].numpy(), strokes)
    assert images.labels.tolist() == [0, 61, 35, 36]
    assert (images.train_count, images.classes) == (4, 62)
    raw = (folder / "emnist-byclass-train-images-idx3-ubyte").read_bytes()
    assert raw[16:] == strokes.transpose(0, 2, 1).tobytes()  # as the official files keep it


@pytest.mark.parametrize(
    ("test", "phrase"),
    [
        (ConnectionError("no route\nto host"), "ConnectionError: no route"),
        (ValueError(), "ValueError"),
        (split(GREY[:1], [0], image="img"), "image"),
        (split(GREY[:0], []), "28, 28) and labels from 0 to 9"),
        (split([GREY[0], GREY[0, :3]], [0, 1]), "shape (28, 28)"),
        (split(random_images(1, (28, 28, 3)), [0]), "shape (28, 28)"),
        (split(GREY[:2], [0, 10]), "0 to 9"),
        (split(GREY[:1], [-1]), "0 to 9"),
        (split(GREY[:1], ["seven"], kind="string"), "0 to 9"),
    ],
)
def test_a_failed_download_and_splits_that_do_not_fit_are_one_sentence_and_leave_nothing(tmp_path, hub, test, phrase):
    hub[0].update(train=split(GREY, [0] * 6), test=test)
    sentence = refused(fetch, "mnist", tmp_path)
    assert "'mnist' (ylecun/mnist)" in sentence
    assert phrase in sentence
    assert list(tmp_path.iterdir()) == []


def test_fetch_without_the_extra_is_one_sentence(tmp_path, hub, monkeypatch):
    hub[0].update(train=split(GREY[:2], [0, 1]), test=split(GREY[:2], [0, 1]))
    monkeypatch.setattr(datasets.config, "PIL_AVAILABLE", False)
    with pytest.raises(InputError, match=r"pip install 'shoal\[hub\]'"):
        fetch("mnist", tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'shoal\[hub\]'"):
        fetch("mnist", tmp_path)


def test_fetch_into_a_folder_that_cannot_be_written_is_refused(tmp_path, hub):
    hub[0].update(train=split(GREY[:2], [0, 1]), test=split(GREY[:2], [0, 1]))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        fetch("mnist", tmp_path / "file")


@pytest.mark.parametrize(("name", "phrase"), [("digits", "'digits'"), ("mnits", "did you mean 'mnist'")])
def test_fetch_of_a_set_that_the_hub_lacks_is_refused(tmp_path, name, phrase):
    with pytest.raises(InputError, match=phrase):
        fetch(name, tmp_path)
