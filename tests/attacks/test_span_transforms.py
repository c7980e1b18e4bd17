"""The search for the transform of a record: a known one is found, and augmented members are recognised."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import shoal
from shoal.attacks import Candidates, Knowledge, ModelSpan, OwnedRecords, UpdateSpan
from shoal.attacks.span.row_space import row_spaces
from shoal.attacks.span.transform_search import search_residuals
from shoal.engine import Engine, LocalSGD, Training


def smooth(count, generator, side=12):
    """Random images with a few smooth blobs, dark at the edge."""
    noise = torch.rand(count, 1, side, side, generator=generator)
    kernel = torch.ones(1, 1, 3, 3) / 9
    inner = torch.nn.functional.conv2d(torch.nn.functional.conv2d(noise**4, kernel), kernel)
    return torch.nn.functional.pad(inner, (2, 2, 2, 2))


@pytest.mark.parametrize("family", [
    shoal.Augmentation(rotation=20.0, shift=1.5),
    shoal.Augmentation(rotation=0.0, shift=2.0, flip=True),
    shoal.Augmentation(rotation=15.0, shift=0.0),
])  # fmt: skip
def test_a_known_transform_is_found(family):
    draw = shoal.Stream(0).generator()
    images = smooth(24, draw)
    uniform = torch.rand(8, 7, generator=draw)
    trained_on = family.transformed(images[:8], uniform).flatten(1)
    (space,) = row_spaces([trained_on], [1e-9])
    residual, floor, found = search_residuals(space, images, family, bias=False)
    assert (residual[:8] < 20 * floor[:8]).all()
    assert (residual[8:] > 100 * floor[8:]).all()
    if not family.flip:
        columns = list(family.varied)
        torch.testing.assert_close(found[:8, columns], uniform[:, columns], atol=1e-3, rtol=0)


def test_a_draw_says_the_transform_and_columns_that_vary_are_named():
    family = shoal.Augmentation(rotation=20.0, shift=0.0, crop=0.2)
    assert family.varied == (0, 1, 5, 6)
    assert family.with_strength(0.0).varied == ()
    draw, images = shoal.Stream(0).generator(), torch.rand(5, 1, 9, 9)
    uniform = torch.rand(5, 7, generator=shoal.Stream(0).generator())
    assert family.augmented(images, draw).equal(family.transformed(images, uniform))
    other = uniform.clone()
    other[:, [2, 3, 4]] = 0.9
    torch.testing.assert_close(family.transformed(images, other), family.transformed(images, uniform))


def trained(epochs):
    """The engine, models before and after a round on six images of each of two clients, updates and local training."""
    draw, family = shoal.Stream(1).generator(), shoal.Augmentation(rotation=15.0, shift=1.0)
    labels = torch.arange(6) % 3
    clients = [(smooth(6, draw, side=14), labels) for _ in range(2)]
    federation = shoal.Federation.from_tensors(clients, test=(smooth(60, draw, side=14), torch.arange(60) % 3))
    model = shoal.create_model("mlp", shoal.Shape(channels=1, height=14, width=14, classes=3), hidden=64)
    local = LocalSGD(epochs=epochs, batch_size=3)
    with Engine(model, threads=1) as engine:
        training = Training(
            federation, shoal.FedAvg(), local, engine, shoal.Stream(0), defenses=(family,), record_every=1
        )
        before = training.start()
        state, report = training.round(before)
        augmented = training.local_of_clusters(state)[0]
    return engine, [before.models, state.models], report.updates, augmented, OwnedRecords.from_federation(federation)


def test_augmented_members_are_recognised_by_the_search_alone():
    engine, _, updates, augmented, records = trained(2)
    candidates = Candidates(records.x[:24], known=records.x[24:])
    found = UpdateSpan().score([updates], candidates, engine, Knowledge(augmented))
    assert found.exact.all()
    np.testing.assert_array_equal(found.score > found.threshold, records.client[:24].numpy() == np.arange(2)[:, None])
    unsearched = UpdateSpan().score([updates], candidates, engine, Knowledge(replace(augmented, augmentation=None)))
    assert not unsearched.exact.any()


@pytest.mark.parametrize("epochs", [2, 8], ids=["24 transformed images", "96, more than rows"])
def test_a_client_searches_transforms_of_images_in_a_sum(epochs):
    """The span of 64 rows holds what two clients trained on in two passes, and not in eight."""
    engine, models, _, augmented, records = trained(epochs)
    candidates = Candidates(records.x[:36], known=records.x[36:], y=records.y[:36], known_y=records.y[36:])
    found = ModelSpan().score(models, candidates, engine, Knowledge(augmented))
    member = records.client[:36].numpy() >= 0
    assert found.exact.tolist() == [epochs == 2]
    if epochs == 2:
        np.testing.assert_array_equal(found.score[0] > found.threshold[0], member)
    absent = replace(candidates, x=candidates.x[~member], y=candidates.y[~member])
    assert not ModelSpan().score(models, absent, engine, Knowledge(augmented)).exact.any(), "nobody trained on these"
