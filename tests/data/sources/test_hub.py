import sys

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from shoal.core.errors import InputError
from shoal.data.sources.catalog import SOURCES, load_dataset
from shoal.data.sources.hub import fetch, from_hub_splits

RNG = np.random.default_rng(2)


def random_images(count, shape, top=256):
    return RNG.integers(0, top, (count, *shape), dtype=np.uint8)


def split(values, labels, image="image", label="label", classes=10):
    features = datasets.Features(
        {image: datasets.Image(), label: datasets.ClassLabel(num_classes=classes), "other": datasets.Value("string")}
    )
    return datasets.Dataset.from_dict(
        {image: [Image.fromarray(v) for v in values], label: labels, "other": ["x"] * len(labels)}, features=features
    )


GREY, GREY_TEST = random_images(1200, (4, 5)), random_images(3, (4, 5))
LABELS = RNG.integers(0, 10, 1200).tolist()


@pytest.fixture
def hub(monkeypatch):
    """A hub without a network: what `datasets.load_dataset` answers, and the requests it got."""
    splits, requests = {}, []

    def load_dataset(repository, *, split):
        requests.append((repository, split))
        return splits[split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return splits, requests


def test_grey_splits_in_more_than_one_batch():
    images = from_hub_splits("mnist", split(GREY, LABELS), split(GREY_TEST, [1, 2, 3]))
    assert images.pixels.dtype == torch.uint8
    np.testing.assert_array_equal(images.pixels[:, 0].numpy(), np.concatenate([GREY, GREY_TEST]))
    assert images.labels.tolist() == [*LABELS, 1, 2, 3]
    assert (images.name, images.white, images.train_count, images.classes) == ("mnist", 255, 1200, 10)


def test_the_format_of_a_hub_split_does_not_matter():
    train = split(GREY[:3], [1, 2, 3]).with_format("torch")
    assert from_hub_splits("mnist", train, None).pixels.shape == (3, 1, 4, 5)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_fetched_grey_sets_are_read_back(tmp_path, hub, name):
    splits, requests = hub
    splits |= {"train": split(GREY, LABELS), "test": split(GREY_TEST, [1, 2, 3])}
    folder = fetch(name, tmp_path / "cache")
    assert folder == tmp_path / "cache" / name
    assert requests == [(SOURCES[name].hub.repository, "train"), (SOURCES[name].hub.repository, "test")]
    images = load_dataset(name, data_dir=tmp_path / "cache")
    np.testing.assert_array_equal(images.pixels[:, 0].numpy(), np.concatenate([GREY, GREY_TEST]))
    assert images.labels.tolist() == [*LABELS, 1, 2, 3]
    assert images.train_count == 1200
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
    strokes = random_images(4, (28, 28), top=100)
    stored = 255 - strokes if dark_on_white else strokes
    splits["train"] = split(stored, [0, 61, 35, 36], label="character", classes=62)
    folder = fetch("emnist-byclass", tmp_path)
    assert requests == [("flwrlabs/femnist", "train")]
    images = load_dataset("emnist-byclass", data_dir=tmp_path)
    np.testing.assert_array_equal(images.pixels[:, 0].numpy(), strokes)
    assert images.labels.tolist() == [0, 61, 35, 36]
    assert (images.train_count, images.classes) == (4, 62)
    raw = (folder / "emnist-byclass-train-images-idx3-ubyte").read_bytes()
    assert raw[16:] == strokes.transpose(0, 2, 1).tobytes()  # as the official files keep it


def test_a_parquet_file_of_the_hub_is_read(tmp_path):
    split(GREY[:9], LABELS[:9]).to_parquet(tmp_path / "train.parquet")
    train = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "train.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    images = from_hub_splits("fashion-mnist", train, None)
    np.testing.assert_array_equal(images.pixels[:, 0].numpy(), GREY[:9])


def unlabelled():
    return datasets.Dataset.from_dict({"image": [Image.fromarray(GREY[0])], "label": ["seven"]})


def damaged():
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    return datasets.Dataset.from_dict({"image": [{"bytes": b"not an image", "path": None}], "label": [1]}, features)


def numbered(label):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    return datasets.Dataset.from_dict({"image": [Image.fromarray(GREY[0])], "label": [label]}, features)


def two_sizes():
    return split([GREY[0], GREY[0][:3]], [0, 1])


@pytest.mark.parametrize(
    ("name", "train", "test", "phrases"),
    [
        ("cifar10", lambda: split(GREY[:2], [0, 1]), None, ["no column 'img'", "'image', 'label', 'other'"]),
        ("emnist-byclass", lambda: split(GREY[:2], [0, 1]), None, ["no column 'character'"]),
        ("mnist", lambda: split(random_images(2, (4, 4, 3)), [0, 1]), None, ["mode RGB", "must be L"]),
        ("cifar10", lambda: split(GREY[:2], [0, 1], "img"), None, ["mode L", "must be RGB"]),
        ("mnist", lambda: split(GREY[:0], []), None, ["zero images"]),
        ("mnist", two_sizes, None, ["3x5 and 4x5"]),
        ("mnist", lambda: split(GREY[:1], [0]), lambda: split(GREY[:1, :3], [0]), ["test images of 3x5", "4x5"]),
        ("mnist", lambda: split(GREY[:1], [0]), lambda: numbered(10), ["label 10 in its test split", "0 to 9"]),
        ("mnist", lambda: numbered(-1), None, ["label -1 in its train split"]),
        ("mnist", unlabelled, None, ["labels of type", "only integers"]),
        ("mnist", damaged, None, ["damaged image"]),
        ("mnits", lambda: None, None, ["'mnits' is not on the hub", "did you mean 'mnist'?"]),
    ],
)
def test_splits_that_do_not_fit_are_one_sentence(name, train, test, phrases):
    with pytest.raises(InputError) as caught:
        from_hub_splits(name, train(), test and test())
    assert all(word in str(caught.value) for word in phrases), str(caught.value)


@pytest.mark.parametrize(
    "error", [ConnectionError("no route\nto host"), OSError("disk"), ValueError(), RuntimeError("x")]
)
def test_a_failed_download_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, error):
    def load_dataset(*args, **kwargs):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(InputError) as caught:
        fetch("mnist", tmp_path)
    sentence = str(caught.value)
    assert "cannot download 'mnist' (ylecun/mnist)" in sentence
    assert type(error).__name__ in sentence
    assert "\n" not in sentence
    assert list(tmp_path.iterdir()) == []


def test_fetch_without_the_extra_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'shoal\[hub\]'"):
        fetch("mnist", tmp_path)


def test_hub_images_without_pillow_are_one_sentence(monkeypatch):
    train = split(GREY[:2], [0, 1])
    monkeypatch.setattr(datasets.config, "PIL_AVAILABLE", False)
    with pytest.raises(InputError, match=r"Pillow: pip install 'shoal\[hub\]'"):
        from_hub_splits("mnist", train, None)


def test_fetch_into_a_folder_that_cannot_be_written_is_refused(tmp_path, hub):
    splits, _ = hub
    splits |= {"train": split(GREY[:2], [0, 1]), "test": split(GREY[:2], [0, 1])}
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        fetch("mnist", tmp_path / "file")


def test_fetch_of_a_set_that_the_hub_lacks_is_refused(tmp_path):
    with pytest.raises(InputError, match="'digits' is not on the hub"):
        fetch("digits", tmp_path)
