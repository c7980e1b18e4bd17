"""What a configuration may say, what it is told when it is wrong, and what is built from it."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.algorithms import IFCA, IFCAMIR, FedAvg, FedProx
from shoal.config.build import build, resolve
from shoal.config.schema import Config, parse_config, read_config
from shoal.core.errors import InputError
from shoal.data import ImageDataset
from shoal.defenses import TrainingSetup
from shoal.engine import LocalSGD


def built(base: Path, *changes: str) -> Any:
    return build(read_config(base, changes))


def setup_of(base: Path, *changes: str) -> TrainingSetup:
    _, simulation = built(base, *changes)
    return simulation.setup


# --- reading and writing ------------------------------------------------------------------------------------------


def test_what_the_file_says_and_what_it_leaves_out(base: Path) -> None:
    config = read_config(base)
    assert config.seed == 3
    assert list(config.data.groups) == ["minority", "majority"]
    assert config.data.groups["majority"].rotation == (25, 50.5)
    assert config.data.groups["majority"].brightness is None
    assert config.algorithm.participation == 1.0
    assert config.privacy.thresholds == (0.5, 0.8)
    assert config.privacy.beta == "threshold"
    assert (config.red_team.every, config.red_team.shadow_models.number) == (5, 3)
    assert (config.engine.device, config.engine.precision) == ("cpu", "fp32")


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["local.epochs=3", "seed=12345678901234567890"],
        ["local.batch_size=all", "privacy.beta=0.25", "red_team.shadow_size=40", "red_team.shadow_epochs=2"],
        ["privacy.beta=[0, 0.1, 1]", 'data.path="/a \\"quoted\\" \\\\ é"', "data.dirichlet_alpha=1e-3"],
        ["algorithm.redraw={}", "data.groups.minority.brightness=[0.5, 1.1]", 'data.groups."a, b."={share=0.1}'],
        ["algorithm.redraw.share=0.1", "red_team.warm_start=false", "engine.device=cuda:1", "model.classes=62"],
    ],
)
def test_toml_gives_the_configuration_back(base: Path, tmp_path: Path, changes: list[str]) -> None:
    config = read_config(base, changes)
    again = tmp_path / "again.toml"
    again.write_text(config.toml(), encoding="utf-8")
    assert read_config(again) == config
    assert list(read_config(again).data.groups) == list(config.data.groups)
    assert read_config(again).toml() == config.toml()


def test_toml_is_complete(base: Path) -> None:
    said = tomllib.loads(read_config(base).toml())
    assert set(said) == {each.name for each in fields(Config)} - {
        "property_attack",
        "record",
        "release",
        "coordinator",
        "canaries",
        "secure_aggregation",
        "forgetting",
        "events",
    }, "what is not asked for is left out"
    assert said["privacy"] == {"thresholds": [0.5, 0.8], "beta": "threshold"}


def test_without_groups_there_is_one(base: Path) -> None:
    given = tomllib.loads(base.read_text())
    del given["data"]["groups"]
    config = parse_config(given, "here")
    assert {name: group.share for name, group in config.data.groups.items()} == {"all": 1.0}


def test_parsing_does_not_change_what_it_is_given(base: Path) -> None:
    given, kept = tomllib.loads(base.read_text()), tomllib.loads(base.read_text())
    parse_config(given, "here")
    assert given == kept


# --- --set --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "path", "expected"),
    [
        ("seed=7", "seed", 7),
        ("algorithm.rounds=10", "algorithm.rounds", 10),
        (" algorithm.rounds = 10", "algorithm.rounds", 10),
        ("algorithm.name=ifca", "algorithm.name", "ifca"),
        ('algorithm.name="ifca"', "algorithm.name", "ifca"),
        ("algorithm.name='ifca'", "algorithm.name", "ifca"),
        ("local.learning_rate=1e-3", "local.learning_rate", 0.001),
        ("local.batch_size=all", "local.batch_size", "all"),
        ("red_team.warm_start=false", "red_team.shadow_models.warm_start", False),
        ("red_team.shadow_models=2", "red_team.shadow_models.number", 2),
        ("red_team.per_class=false", "red_team.attack.per_class", False),
        ("privacy.thresholds=[0.6, 0.7]", "privacy.thresholds", (0.6, 0.7)),
        ("privacy.beta=0", "privacy.beta", 0),
        ("data.path=sets/a=b", "data.path", "sets/a=b"),
        ("algorithm.redraw.share=0.2", "algorithm.value.ifca.redraw.share", 0.2),
        ("evaluation.every=5", "evaluation.every", 5),
    ],
)
def test_a_change_sets_a_nested_key(base: Path, change: str, path: str, expected: Any) -> None:
    value: Any = read_config(base, [change])
    for part in path.split("."):
        value = getattr(value, part)
    assert value == expected


@pytest.mark.parametrize(
    "key", ["data.groups.minority.share", 'data.groups."minority".share', "data . groups . minority . share"]
)
def test_a_change_reaches_into_groups(base: Path, key: str) -> None:
    groups = read_config(base, [f"{key}=0.3"]).data.groups
    assert groups["minority"].share == 0.3
    assert groups["minority"].rotation == (0, 25)
    assert list(groups) == ["minority", "majority"]
    assert read_config(base, ['data.groups."v1.2".share=0.1']).data.groups["v1.2"].share == 0.1


def test_changes_leave_the_file_as_it_is_and_a_key_set_twice_is_said(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_config(base, ["seed=7"]).seed == 7
    assert read_config(base).seed == 3
    assert read_config(base, ["local.epochs=7", "seed=1", "local . epochs=8"]).local.epochs == 8
    assert "'local.epochs' more than once" in caplog.text


def test_a_new_algorithm_leaves_the_file_s_keys_of_others_and_is_set_no_key_of_others(base: Path) -> None:
    assert read_config(base).algorithm.value == IFCAMIR()
    assert read_config(base, ["algorithm.name=fedavg"]).algorithm.value == FedAvg()
    wrapped = ["algorithm.base.mu=0.5", "algorithm.base.name=fedprox", "algorithm.name=pooling"]
    assert read_config(base, wrapped).algorithm.value.base == FedProx(mu=0.5)
    for wrong in (
        ["algorithm.clusters=3", "algorithm.name=fedavg"],
        ["algorithm.base.name=fedavg"],
        [*wrapped, "algorithm.base.clusters=2"],
    ):
        with pytest.raises(InputError, match=r"'algorithm\..*' is a key of 'ifca|'algorithm.base' is a key of"):
            read_config(base, wrong)


# --- bad files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('source = "digits"', "data.source"),
        ("rounds = 4", "algorithm.rounds"),
        ("share = 0.2", "data.groups.minority.share"),
        ('[model]\nname = "mlp"', "model"),
        ("test_examples = 60", "data.test_examples"),
        ('name = "ifca-mir"', "algorithm.name"),
    ],
)
def test_a_missing_key_or_table_is_named(base: Path, line: str, key: str) -> None:
    text = base.read_text()
    assert text.count(line) == 1
    base.write_text(text.replace(line, ""))
    with pytest.raises(InputError, match=f"'{key}' is missing"):
        read_config(base)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "'data' is missing"),
        *(
            (text, "is not TOML: ")
            for text in (b"seed = ", b"[data\nseed = 1", b"seed = 1\nseed = 2", b"= 5", b"seed = 1 # \xff")
        ),
        *(
            (f'seed = 1\npath = "{path}"{end}'.encode(), "is not TOML: .*backslash in double quotes.*single quotes")
            for path in (r"C:\Users\t.csv", r"C:\data", "C:\\data\\")
            for end in ("", "\n")
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(base: Path, content: bytes, sentence: str) -> None:
    base.write_bytes(content)
    with pytest.raises(InputError, match=f"base.toml: {sentence}"):
        read_config(base)


def test_a_backslash_elsewhere_in_the_file_is_not_blamed(base: Path) -> None:
    base.write_text("path = 'C:\\Users'\nseed = ")
    with pytest.raises(InputError, match="is not TOML") as caught:
        read_config(base)
    assert "single quotes" not in str(caught.value)


def test_a_missing_file_is_said_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"in the folder '{tmp_path / 'sub'}'"):
        read_config("sub/none.toml")


def test_a_file_that_is_not_there_or_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.toml: cannot be read: No such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(InputError, match=r"cannot be read: Is a directory"):
        read_config(tmp_path)


# --- building -----------------------------------------------------------------------------------------------------


def test_build_makes_what_the_configuration_says(base: Path) -> None:
    changes = ("local.decay=0.9", "algorithm.participation=0.5", "evaluation.every=2")
    decided, simulation = built(base, *changes)
    federation = simulation.federation
    assert federation.groups == ("minority", "majority")
    assert federation.group.bincount().tolist() == [2, 8]
    assert (federation.clients.sizes == 20).all()
    assert (len(federation.shadow), len(federation.test)) == (100, 60)
    assert simulation.algorithm == IFCAMIR(IFCA(clusters=2))
    setup = setup_of(base, *changes)
    assert setup.model.parameters == 200 * 65 + 10 * 201
    assert setup.local == LocalSGD(epochs=2, batch_size=10, learning_rate=0.1, decay=0.9)
    assert (simulation.rounds, simulation.seed, simulation.participation) == (4, 3, 0.5)
    assert simulation.evaluate_every == 2
    assert decided.model.classes == 10


def test_what_was_decided_is_written_down_and_builds_the_same(base: Path, tmp_path: Path) -> None:
    base.write_text(base.read_text().replace("epochs = 2\n", ""))
    decided, simulation = built(base, "algorithm.name=fedavg", "local.batch_size=all")
    assert decided.local.epochs == 1
    assert (decided.algorithm.name, decided.algorithm.value) == ("fedavg", simulation.algorithm)
    assert "clusters" not in decided.table()["algorithm"], "a key of other algorithms"
    assert decided.engine.backend in ("loop", "vmap")
    again = tmp_path / "again.toml"
    again.write_text(decided.toml(), encoding="utf-8")
    redecided, resimulation = build(read_config(again))
    assert redecided == decided
    assert setup_of(again).local == setup_of(base, "local.batch_size=all").local
    assert resimulation.algorithm == simulation.algorithm
    assert (resimulation.federation.clients.x == simulation.federation.clients.x).all()
    assert (resimulation.federation.preferences.threshold == simulation.federation.preferences.threshold).all()


@pytest.mark.parametrize(
    ("changes", "hidden", "filters"),
    [
        (["model.name=mlp"], 200, None),
        (["model.name=mlp", "model.hidden=7"], 7, None),
        (["model.name=digits-cnn"], None, None),
    ],
)
def test_sizes_are_decided_for_the_models_that_have_them(base: Path, changes: list[str], hidden, filters) -> None:
    decided, _ = built(base, *changes)
    assert (decided.model.hidden, decided.model.filters) == (hidden, filters)
    assert ("hidden" in decided.toml()) is (hidden is not None)
    assert "filters" not in decided.toml()
    base.write_text(decided.toml())
    assert read_config(base, ["model.name=logistic"]).model.hidden is None
    with pytest.raises(InputError, match="'logistic' has no key 'hidden'"):
        read_config(base, ["model.hidden=7", "model.name=logistic"])


@pytest.mark.parametrize(
    ("section", "hidden", "filters"),
    [({}, 256, (32, 64, 128)), ({"hidden": 5, "filters": [2, 3, 4]}, 5, (2, 3, 4))],
)
def test_the_face_network_s_sizes_are_decided_and_built(base: Path, section: dict, hidden, filters) -> None:
    table = tomllib.loads(base.read_text())
    images = ImageDataset("squares", torch.zeros(400, 1, 24, 22, dtype=torch.uint8), 255, torch.arange(400) % 2, 400, 2)
    found = resolve(parse_config(table | {"model": {"name": "faces-cnn"} | section}, "test"), images)
    assert (found.config.model.hidden, found.config.model.filters) == (hidden, filters)
    network = found.simulation.model.network()
    assert (network.first.out_channels, network.second.out_channels, network.third.out_channels) == filters  # pyright: ignore
    assert network.hidden.out_features == hidden  # pyright: ignore


def test_a_billion_clients_are_refused_before_anything_is_allocated_for_them(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("draw_preferences", "partition_dataset"):
        monkeypatch.setattr(f"shoal.config.build.{name}", lambda *_: pytest.fail("allocates by the number of clients"))
    with pytest.raises(InputError, match="20,000,000,160"):
        built(base, "data.clients=1000000000")


ALLOWED = {
    "no shadow set where only the gap is measured": [
        "data.shadow_examples=0",
        "red_team.attack=gap",
        "red_team.estimator=audit",
    ],
    "no shadow set without a red team in the loop": [
        "data.shadow_examples=0",
        "red_team.attack=gap",
        "red_team.every=0",
        "algorithm.name=ifca",
    ],
    "federated with holdout": ["red_team.estimator=federated", "data.holdout_examples=2"],
    "federated that never runs": ["red_team.estimator=federated", "red_team.every=0", "algorithm.name=ifca"],
    "as many clusters as clients": ["algorithm.clusters=10"],
    "one test example a group": ["data.test_examples=2"],
    "more classes than the data has": ["model.classes=62"],
    "a group of share 0": ["data.groups.unrotated.share=0.0"],
    "nobody takes part": ["algorithm.participation=0"],
}


@pytest.mark.parametrize("case", list(ALLOWED))
def test_build_allows_what_lies_just_inside(base: Path, case: str) -> None:
    _, simulation = built(base, *ALLOWED[case])
    assert len(simulation.federation) == 10


def test_gradient_averaging_takes_one_step(base: Path) -> None:
    base.write_text(base.read_text().replace("epochs = 2", "steps = 1"))
    assert setup_of(base, "algorithm.averaging=gradient").local.steps == 1
    with pytest.raises(InputError, match=r"algorithm: 'local.steps' must be 1"):
        built(base, "algorithm.averaging=gradient", "local.steps=2")


def test_a_byte_order_mark_is_tolerated(base: Path) -> None:
    before = read_config(base)
    base.write_bytes(b"\xef\xbb\xbf" + base.read_bytes())
    assert read_config(base) == before
