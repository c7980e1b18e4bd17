"""Features: references for wavelets and components, and what a federation on features keeps."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import shoal
from shoal.config.schema import parse_config
from shoal.config.toml_files import read_toml
from shoal.core.errors import InputError
from shoal.models import FeatureMap, Features, Scattering
from shoal.models.features import PrincipalComponents


def images(count, side=16, seed=0):
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(seed))


# Sums over the pixels of the channels of kymatio 0.3.0's Scattering2D, on the images below: of all at J = 1, and some
# of each order at J = 2. Its Gaussians are divided by 3.1415 where the formula has pi, once for each convolution.
AT_SCALE_1 = [7.11432, 1.222751, 0.73454, 0.610842, 0.628254, 0.730492, 0.561565, 1.62717, 1.915833]
PLACES = [0, 1, 6, 9, 14, 17, 30, 52, 80]
AT_SCALE_2 = [7.23111, 1.150493, 1.035767, 0.190095, 0.282318, 0.115557, 0.064622, 0.037065, 0.047139]


def test_scattering_is_that_of_kymatio():
    image = (torch.arange(64.0).reshape(1, 1, 8, 8) * 7 % 11) / 11
    sums = Scattering(8, 8, scale=1)(image)[0].sum(dim=(1, 2))
    torch.testing.assert_close(sums, torch.tensor(AT_SCALE_1), rtol=2e-4, atol=1e-5)


def test_second_order_scattering_is_that_of_kymatio():
    image = (torch.arange(256.0).reshape(1, 1, 16, 16) * 7 % 11) / 11
    sums = Scattering(16, 16, scale=2)(image)[0].sum(dim=(1, 2))[PLACES]
    torch.testing.assert_close(sums, torch.tensor(AT_SCALE_2), rtol=2e-4, atol=1e-5)


def test_scattering_of_a_constant_image_is_its_constant():
    channels = Scattering(12, 20)(torch.full((1, 2, 12, 20), 0.3))[0].unflatten(0, (2, 81))
    torch.testing.assert_close(channels[:, 0], torch.full((2, 3, 5), 0.3))
    assert channels[:, 1:].abs().max() < 1e-6


def test_components_are_those_of_the_singular_vectors():
    x = images(30, side=4)
    features = PrincipalComponents.fit(x, 3)(x)
    flat = x.flatten(1).double()
    _, values, vectors = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    expected = functional.normalize((flat - flat.mean(0)) @ vectors[:3].T / (values[:3] / 29**0.5).sqrt(), dim=1)
    # The sign of a singular vector is free.
    torch.testing.assert_close(features.double().abs(), expected.abs(), rtol=1e-4, atol=1e-4)


def test_a_feature_depends_on_its_example_alone():
    fitted, x = Features(("scattering", "pca"), dimension=4).fit(images(40)), images(9, seed=1)
    torch.testing.assert_close(fitted.transform(x)[3:5], fitted.transform(x[3:5]))
    assert fitted.transform(x[:0]).shape == (0, 4)


@pytest.mark.parametrize("maps", [("scattering",), ("pca",), ("scattering", "pca")])
def test_features_are_the_same_with_more_threads_and_of_the_public_examples_once_computed(maps):
    many = images(600)
    fitted, of_public = Features(maps, dimension=5 if "pca" in maps else None).fit_and_map(many, threads=3)
    assert fitted.transform(many).equal(of_public)


@pytest.mark.parametrize(
    ("maps", "dimension", "width"),
    [(("scattering",), None, 81 * 16), (("pca",), 5, 5), (("scattering", "pca"), 6, 6), (("own:Flatten", "pca"), 3, 3)],
)
def test_the_width_is_that_of_the_features(maps, dimension, width):
    features = Features(maps, dimension=dimension, modules={"own:Flatten": nn.Flatten})
    assert features.width((1, 16, 16)) == features.fit(images(30)).transform(images(2)).shape[1] == width


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"maps": ()}, "'maps' must name at least one map"),
        ({"maps": ("wavelets",)}, "'maps' must be 'scattering', 'pca' or 'module:Name'"),
        ({"maps": ("pca",)}, "'dimension' is missing"),
        ({"maps": ("scattering",), "dimension": 3}, "'dimension' is only allowed with 'pca' in 'maps'"),
        ({"maps": ("pca", "scattering"), "dimension": 3}, r"'scattering' must be the first of 'maps' \(got"),
        ({"maps": ("pca", "pca"), "dimension": 3}, "at most once"),
    ],
)
def test_features_that_make_no_sense_are_refused(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        Features(**arguments)


def test_too_few_public_examples_or_pixels_are_refused():
    with pytest.raises(InputError, match="'dimension' must be at most 5, for a shadow set of 5 examples with 256"):
        Features(("pca",), dimension=6).fit(images(5))
    with pytest.raises(InputError, match=r"8x8 pixels .got 4x4"):
        Features(("scattering",)).fit(images(5, side=4))
    with pytest.raises(InputError, match="'own:Flatten'"):
        Features(("own:Flatten",)).fit(images(5))
    with pytest.raises(InputError, match="'scattering'"):
        Features(("scattering",)).fit(torch.rand(5, 3))


def test_a_saved_map_is_the_same_map(tmp_path):
    fitted = Features(("scattering", "pca"), dimension=4).fit(images(40))
    (tmp_path / "features").write_bytes(fitted.to_bytes())
    assert FeatureMap.load(tmp_path / "features").transform(images(3)).equal(fitted.transform(images(3)))
    (tmp_path / "own").write_bytes(FeatureMap(nn.Flatten()).to_bytes())
    assert FeatureMap.load(tmp_path / "own") is None
    (tmp_path / "damaged").write_bytes(b"no tensors")
    with pytest.raises(InputError, match="is damaged"):
        FeatureMap.load(tmp_path / "damaged")


def federation(clients=4, shadow=40):
    labels = torch.arange(10) % 3
    public = (images(shadow, seed=9), torch.arange(shadow) % 3)
    test = (images(30, seed=8), torch.arange(30) % 3)
    return shoal.Federation.from_tensors(
        [(images(10, seed=i), labels) for i in range(clients)], test=test, shadow=public if shadow else None
    )


def toy(own, features, **further):
    model = shoal.create_model("logistic", shoal.VectorShape(features.width((1, 16, 16)), 3))
    local = shoal.LocalSGD(epochs=2, batch_size=5, learning_rate=0.5)
    return shoal.Simulation(own, model, shoal.IFCA(clusters=2), local, rounds=2, features=features, **further)


def test_training_on_features_is_training_on_a_federation_of_features():
    features, own = Features(("pca",), dimension=6), federation()
    fitted = features.fit(own.shadow.x)
    simulation = toy(own, features)
    mapped = replace(simulation, federation=own.map_inputs(fitted.transform), features=None)
    result, expected = shoal.Run(simulation).train(), shoal.Run(mapped).train()
    assert result.state.models.equal(expected.state.models)
    network = nn.Sequential(result.features, simulation.model.network())
    network[1].load_state_dict(result.models[0])
    x = own.test.x[:3]
    assert network(x).equal(network[1](fitted.transform(x)))
    assert result.samples.keys() == {"all"}


def test_a_frozen_body_as_a_map_trains_the_same_head():
    body, calls = nn.Sequential(nn.Flatten(), nn.Linear(256, 20), nn.ReLU()).requires_grad_(False), []
    body.register_forward_hook(lambda _, inputs, __: calls.append(len(inputs[0])))
    local = shoal.LocalSGD(epochs=2, batch_size=5, learning_rate=0.5)
    head, whole = shoal.Model(lambda: nn.Linear(20, 3)), shoal.Model(lambda: nn.Sequential(*body, nn.Linear(20, 3)))
    own, more = federation(), {"algorithm": shoal.FedAvg(), "local": local, "rounds": 3}
    features = Features(("own:body",), modules={"own:body": body})
    once = shoal.Run(shoal.Simulation(own, head, features=features, **more)).train()
    assert sum(calls) < 2 * (40 + 30 + 40), "one call per example, and a few to find the width"
    again = shoal.Run(shoal.Simulation(own, whole, **more)).train()
    # Sums over other numbers of inputs at once may differ in the last bits.
    torch.testing.assert_close(once.state.models, again.state.models, rtol=1e-5, atol=1e-6)


def test_a_run_on_features_is_resumed_and_loaded_with_its_map(tmp_path):
    simulation = toy(federation(), Features(("scattering", "pca"), dimension=6))
    result = shoal.Run(simulation, tmp_path / "run").train()
    assert shoal.Run(simulation, tmp_path / "run").train(resume=True).state.models.equal(result.state.models)
    x = federation().test.x
    assert shoal.load(tmp_path / "run").features.transform(x).equal(result.features.transform(x))


def test_a_run_on_a_map_of_one_s_own_is_loaded_without_it_and_resumed_with_it(tmp_path):
    simulation = toy(federation(), Features(("own:Flatten",), modules={"own:Flatten": nn.Flatten}))
    result = shoal.Run(simulation, tmp_path / "run").train()
    again = shoal.Run(simulation, tmp_path / "run").train(resume=True)
    assert shoal.load(tmp_path / "run").features is None
    x = federation().test.x
    assert again.features.transform(x).equal(result.features.transform(x))
    assert again.models[0]["output.weight"].equal(result.models[0]["output.weight"])


def test_features_need_public_examples_and_refuse_defences_of_images():
    with pytest.raises(InputError, match="'pca' needs a shadow set"):
        shoal.Run(toy(federation(shadow=0), Features(("pca",), dimension=2))).train()
    with pytest.raises(InputError, match=r"'augmentation' needs images \(got features\)"):
        toy(federation(), Features(("pca",), dimension=2), defenses=[shoal.Augmentation()])
    with pytest.raises(InputError, match="'features' must be a Features"):
        shoal.Simulation(
            federation(), shoal.create_model("logistic", shoal.VectorShape(2, 3)), shoal.FedAvg(), shoal.LocalSGD(),
            rounds=1, features="pca",
        )  # fmt: skip


def test_a_configuration_trains_on_features_and_is_audited(tmp_path):
    data = {"source": "digits", "clients": 4, "examples_per_client": 10, "shadow_examples": 30, "test_examples": 40}
    features = {"maps": ["scattering", "pca"], "dimension": 5}
    table = {"data": data, "model": {"name": "logistic", "features": features}}
    table |= {"algorithm": {"name": "fedavg", "rounds": 1}, "red_team": {"every": 0, "attack": "gap"}}
    out = shoal.run(parse_config(table, "the test"), tmp_path / "run")
    assert shoal.load(out).models[0]["output.weight"].shape == (10, 5)
    assert parse_config(read_toml(out / "config.toml"), "written").model.features == Features(**features)
    assert shoal.audit_run(out, references=2).audit.members > 0
    of_images = table | {"model": {"name": "digits-cnn", "features": features}}
    with pytest.raises(InputError, match="'mlp', 'logistic'"):
        shoal.run(parse_config(of_images, "the test"), tmp_path / "other")
    table["data"] = data | {"shadow_examples": 0}
    with pytest.raises(InputError, match="'pca' needs a shadow set"):
        shoal.run(parse_config(table, "the test"), tmp_path / "other")
