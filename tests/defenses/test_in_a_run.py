"""[defenses] in a configuration, and what a run directory says of them."""

import json
import math
import re
from dataclasses import replace

import pandas as pd
import pytest

from shoal.config.build import build, resolve
from shoal.config.schema import parse_config, read_config
from shoal.core.errors import InputError
from shoal.data import load_dataset
from shoal.defenses import DPSGD, NormClipping
from shoal.runs.result import report_of
from shoal.runs.run import run


@pytest.fixture(scope="module")
def config_of(toy_config):
    """Makes the configuration of a run of one group, with these defences."""
    plain = {
        "data__groups": {"all": {"share": 1.0}}, "data__clients": 6, "data__examples_per_client": 20,
        "algorithm": {"name": "ifca", "rounds": 2}, "local": {"epochs": 1, "batch_size": 10},
        "red_team": {"every": 0, "attack": "gap"},
    }  # fmt: skip
    return lambda defenses, **changes: toy_config(defenses=defenses, **plain | changes)


ALL = {
    "dropout": 0.1,
    "l2": 0.01,
    "max_update_norm": 1.5,
    "dp_sgd": {"noise_multiplier": 0.5, "max_grad_norm": 2.0, "delta": 1e-4, "sampling": "poisson"},
}


def test_all_configured_defences_reach_the_simulation(config_of, tmp_path):
    config, simulation = build(config_of(ALL))
    assert simulation.setup.first_local().gradient_privacy == DPSGD(2.0, 0.5, 1e-4, "rdp", "poisson")
    assert simulation.setup.first_local().weight_decay == 0.01
    assert simulation.setup.update_filter == NormClipping(1.5)
    assert dict(simulation.setup.model.network().named_modules())["output.dropout"].p == 0.1
    assert config.engine.backend == "loop"
    (tmp_path / "config.toml").write_text(config.toml())
    assert read_config(tmp_path / "config.toml") == config


BATCHED = [
    {"dp_sgd": {"noise_multiplier": 0.5}, "augmentation": {"multiplicity": 2}},
    {"share_of_steps": 0.5, "augmentation": {"rotation": 5}},
]


def test_augmentation_and_private_steps_of_small_networks_keep_the_vmap_backend(config_of):
    assert {build(config_of(defenses))[0].engine.backend for defenses in BATCHED} == {"vmap"}


@pytest.mark.parametrize(
    ("kind", "defenses", "sentence"),
    [
        ("texts", {"augmentation": {}}, "'augmentation' needs images (got texts)"),
        ("rows", {"augmentation": {}}, "'augmentation' needs images (got rows)"),
        ("texts", {"mixup": 0.4}, "'mixup' needs numeric inputs"),
    ],
)
def test_defences_of_images_are_refused_for_other_examples(tmp_path, kind, defenses, sentence):
    (tmp_path / "table.csv").write_text("who,what,a\n" + "".join(f"{i % 3},{i % 2},{i}\n" for i in range(30)))
    data = {"source": "numbered_texts:source", "clients": 3, "examples_per_client": 4, "test_examples": 4}
    if kind == "rows":
        data = {"source": "table", "path": str(tmp_path / "table.csv"), "client": "who", "label": "what"}
    model = {"name": "mlp", "hidden": 4} if kind == "rows" else {"name": "gru"}
    table = {
        "data": data, "model": model, "algorithm": {"name": "fedavg", "rounds": 1}, "defenses": defenses,
        "red_team": {"every": 0, "attack": "gap"},
    }  # fmt: skip
    with pytest.raises(InputError, match=rf"^defenses: {re.escape(sentence)}"):
        build(parse_config(table, "test"))


def test_noise_may_be_left_out_with_no_bound_and_then_nothing_is_private(config_of):
    config, simulation = build(config_of({"dp_sgd": {"noise_multiplier": 0.0, "max_grad_norm": math.inf}}))
    assert not simulation.setup.first_local().private
    assert config.engine.backend == "vmap"


@pytest.mark.parametrize(
    ("defenses", "sentence"),
    [
        ({"flooding": "a"}, r"'defenses.flooding' must be a number.* \(got 'a'"),
        ({"relaxloss": {}}, r"'defenses.relaxloss.alpha' is missing"),
        ({"augmentation": {"strength": 0.5}}, r"unknown key 'defenses.augmentation.strength'"),
        ({"mixup": 0.4, "flooding": 0.5}, r"^defenses: Mixup cannot be combined with Flooding"),
        ({"ccl": {}, "dp_sgd": {"noise_multiplier": 1.0}}, r"^defenses: DP-SGD cannot minimise"),
        ({"dp_sdg": {}}, r"unknown key 'defenses.dp_sdg'; did you mean 'dp_sgd'\?"),
        ({"dp_sgd": {}}, r"'defenses.dp_sgd.noise_multiplier' is missing"),
        (
            {"dp_sgd": {"noise_multiplier": 1.0, "max_grad_norm": math.inf}},
            r"^test: \[defenses.dp_sgd\]: 'max_grad_norm' must be finite",
        ),
        ({"dp_sgd": {"noise_multiplier": 0.05, "accountant": "prv"}}, "'accountant' must be"),
    ],
)
def test_invalid_defences_of_a_configuration_are_refused(config_of, defenses, sentence):
    big = {"algorithm": {"name": "fedavg", "rounds": 5000}}
    with pytest.raises(InputError, match=sentence):
        build(config_of(defenses, **big))


def test_a_network_with_batch_norm_is_refused_with_the_remedy(config_of):
    defenses = {"dp_sgd": {"noise_multiplier": 1.0}}
    sections = {"data__shadow_examples": 0}
    images = load_dataset("digits")
    wide = replace(images, pixels=images.pixels.repeat_interleave(4, 2).repeat_interleave(4, 3))
    model = {"name": "vgg11", "norm": "batch"}
    with pytest.raises(InputError, match="norm = 'group' for the VGGs"):
        resolve(config_of(defenses, **sections, model=model), wide)
    resolve(config_of(defenses, **sections, model=model | {"norm": "group"}), wide)


def test_a_private_run_reports_what_it_spent(config_of, tmp_path):
    run(config_of(ALL), tmp_path / "private")
    clients = pd.read_csv(tmp_path / "private" / "clients.csv")
    summary = json.loads((tmp_path / "private" / "summary.json").read_text())
    assert clients.columns[-1] == "epsilon"
    assert summary["epsilon"] == pytest.approx(clients["epsilon"].max())
    assert summary["delta"] == 1e-4
    assert "Epsilon" in report_of(tmp_path / "private").read_text()
    run(config_of({"dropout": 0.1}), tmp_path / "plain")
    assert "epsilon" not in pd.read_csv(tmp_path / "plain" / "clients.csv")
