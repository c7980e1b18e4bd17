"""Settings of defences outside their range are refused in one sentence."""

import math
import re

import pytest

from shoal.core.errors import InputError
from shoal.defenses import CCL, DPSGD, Augmentation, Flooding, Mixup, RelaxLoss, ShorterTraining


@pytest.mark.parametrize(
    ("defense", "settings", "sentence"),
    [
        (Augmentation, {"rotation": -1.0}, "'rotation' must be at least 0; got -1.0"),
        (Augmentation, {"rotation": 181.0}, "'rotation' must be at most 180; got 181.0"),
        (Augmentation, {"shift": -0.5}, "'shift' must be at least 0; got -0.5"),
        (Augmentation, {"shift": math.inf}, "'shift' must be a finite number; got inf"),
        (Augmentation, {"flip": 0.5}, "'flip' must be true or false; got 0.5"),
        (Augmentation, {"crop": 1.0}, "'crop' must be below 1; got 1.0"),
        (
            DPSGD,
            {"noise_multiplier": 0.5, "max_grad_norm": math.inf},
            "noise needs clipping: 'noise_multiplier' is 0.5, so 'max_grad_norm' must be finite",
        ),
        (DPSGD, {"noise_multiplier": math.nan}, "'noise_multiplier' must be a finite number; got nan"),
        (DPSGD, {"noise": "sum"}, "'min_clients' is missing: the fewest clients of a sum"),
        (DPSGD, {"min_clients": 3}, "'min_clients' is of noise = 'sum'; leave it out"),
        (
            DPSGD,
            {"noise": "sum", "min_clients": 3, "sampling": "poisson"},
            "noise = 'sum' takes all examples in every step, so 'sampling' must be 'shuffled'; got 'poisson'",
        ),
        (DPSGD, {"delta": 0.0}, "'delta' must be above 0; got 0.0"),
        (DPSGD, {"sampling": "fixed"}, "'sampling' must be 'shuffled' or 'poisson'; got 'fixed'"),
        (Mixup, {"alpha": -0.1}, "'alpha' must be at least 0; got -0.1"),
        (Mixup, {"alpha": math.inf}, "'alpha' must be a finite number; got inf"),
        (Flooding, {"level": -1.0}, "'level' must be at least 0; got -1.0"),
        (RelaxLoss, {"alpha": -1.0}, "'alpha' must be at least 0; got -1.0"),
        (RelaxLoss, {"alpha": 1.0, "upper": 0.0}, "'upper' must be above 0; got 0.0"),
        (RelaxLoss, {"alpha": 1.0, "upper": 1.5}, "'upper' must be at most 1; got 1.5"),
        (CCL, {"variant": "cce"}, "'variant' must be 'ccel' or 'ccql'; got 'cce'"),
        (CCL, {"alpha": 1.1}, "'alpha' must be at most 1; got 1.1"),
        (CCL, {"beta": 0.0}, "'beta' must be above 0; got 0.0"),
        (ShorterTraining, {"share": 0.0}, "'share' must be above 0; got 0.0"),
        (ShorterTraining, {"share": 1.5}, "'share' must be at most 1; got 1.5"),
    ],
)
def test_a_setting_outside_its_range_is_refused(defense, settings, sentence):
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        defense(**settings)
