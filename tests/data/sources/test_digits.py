import torch
from sklearn.datasets import load_digits

from shoal.data.sources.digits import load_sklearn_digits


def test_the_digits_are_scikit_learns():
    digits, original = load_sklearn_digits(), load_digits()
    assert digits.pixels.shape == (1797, 1, 8, 8)
    assert digits.pixels.dtype == torch.uint8
    assert torch.equal(digits.pixels[:, 0].double(), torch.from_numpy(original.images))
    assert torch.equal(digits.labels, torch.from_numpy(original.target).long())
    assert int(digits.pixels.max()) == digits.white == 16
    assert (digits.name, digits.train_count, digits.classes) == ("digits", 1797, 10)
