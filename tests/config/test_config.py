"""What a configuration may say, what it is told when it is wrong, and what is built from it."""

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.algorithms import IFCA, IFCAMIR
from shoal.config.build import build, resolve
from shoal.config.schema import Config, parse_config, read_config
from shoal.core.errors import InputError
from shoal.data import ImageDataset
from shoal.defenses import TrainingSetup
from shoal.engine import LocalSGD

BASE = """
seed = 3
[data]
source = "digits"
clients = 10
examples_per_client = 20
shadow_examples = 100
test_examples = 60
[data.groups.minority]
share = 0.2
rotation = [0, 25]
[data.groups.majority]
share = 0.8
rotation = [25, 50.5]
[model]
name = "mlp"
[algorithm]
name = "ifca-mir"
clusters = 2
rounds = 4
[local]
epochs = 2
batch_size = 10
learning_rate = 0.1
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.toml"
    path.write_text(BASE)
    return path


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
        ["privacy.beta=[0, 0.1, 1]", 'data.path="a \\"quoted\\" \\\\ é"', "data.dirichlet_alpha=1e-3"],
        ["algorithm.redraw={}", "data.groups.minority.brightness=[0.5, 1.1]", 'data.groups."a b"={share=0.1}'],
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
    }, "what is not asked for is left out"
    assert said["privacy"] == {"thresholds": [0.5, 0.8], "beta": "threshold"}


def test_a_group_whose_name_needs_quotes_survives(base: Path, tmp_path: Path) -> None:
    given = tomllib.loads(BASE)
    given["data"]["groups"] = {"over 60, rural.": {"share": 1.0}}
    config = parse_config(given, "here")
    again = tmp_path / "again.toml"
    again.write_text(config.toml(), encoding="utf-8")
    assert read_config(again) == config


def test_without_groups_there_is_one(base: Path) -> None:
    given = tomllib.loads(BASE)
    del given["data"]["groups"]
    config = parse_config(given, "here")
    assert {name: group.share for name, group in config.data.groups.items()} == {"all": 1.0}


def test_parsing_does_not_change_what_it_is_given() -> None:
    given, kept = tomllib.loads(BASE), tomllib.loads(BASE)
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


def test_a_change_reaches_a_group_whose_name_has_a_dot(base: Path) -> None:
    groups = read_config(base, ['data.groups."v1.2".share=0.1']).data.groups
    assert groups["v1.2"].share == 0.1


def test_later_changes_win_and_the_file_stays(base: Path) -> None:
    assert read_config(base, ["seed=7", "seed=8"]).seed == 8
    assert base.read_text() == BASE


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("seed", r"--set takes KEY=VALUE, .*; got 'seed'"),
        ("=5", r"--set takes KEY=VALUE, .*; got '=5'"),
        ("algorithm..rounds=5", r"--set takes KEY=VALUE, .*; got 'algorithm..rounds=5'"),
        ("seed=18446744073709551616", r"--set seed=18446744073709551616: has an integer of 65 bits; at most 64"),
        ("local={batch_size = 1180591620717411303424}", r"--set local=.*: has an integer of 71 bits"),
        ("seed.more=5", r"--set seed.more=5: 'seed' is a value, not a table"),
        ("algorithm.name.first=5", r"'name' is a value, not a table"),
        ("algorithm.round=5", r"unknown key 'algorithm.round'; did you mean 'rounds'\?"),
        ("algorithm.rounds=", r"'algorithm.rounds' must be an integer; got ''"),
        ("algorithm.rounds=ten", r"'algorithm.rounds' must be an integer; got 'ten'"),
    ],
)
def test_a_change_that_cannot_be_made(base: Path, change: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_config(base, [change])


# --- bad values ---------------------------------------------------------------------------------------------------


BAD = [
    # unknown keys, at every level
    ("sead=1", r"unknown key 'sead'; did you mean 'seed'\?"),
    ("dta.clients=1", r"unknown key 'dta'; did you mean 'data'\?"),
    ("data.client=1", r"the key 'data.client' is of source 'table' alone; did you mean 'clients'\?"),
    ("data.groups.minority.rotaton=[0, 1]", r"unknown key 'data.groups.minority.rotaton'; did you mean 'rotation'\?"),
    ("model.nam='mlp'", r"unknown key 'model.nam'; did you mean 'name'\?"),
    ("model.adapter.name='lora'", r"unknown key 'model.adapter'; known: "),
    ("algorithm.redraw.shares=0.1", r"unknown key 'algorithm.redraw.shares'; did you mean 'share'\?"),
    ("local.lr=0.1", r"unknown key 'local.lr'; "),
    (
        "local.zzz=0.1",
        r"unknown key 'local.zzz'; known: batch_size, .*decay, epochs, learning_rate, .*steps, weight_decay",
    ),
    ("red_team.shadow_model=1", r"unknown key 'red_team.shadow_model'; did you mean 'shadow_models'\?"),
    ("privacy.threshold=[0.5, 0.8]", r"unknown key 'privacy.threshold'; did you mean 'thresholds'\?"),
    ("engine.thread=1", r"unknown key 'engine.thread'; did you mean 'threads'\?"),
    ("engine.personal_models='disk'", r"unknown key 'engine.personal_models'; known: .*threads"),
    ("checkpoint.evry=1", r"unknown key 'checkpoint.evry'; did you mean 'every'\?"),
    ("data.groups.share={share=0.1, shar=1}", r"unknown key 'data.groups.share.shar'; did you mean 'share'\?"),
    # wrong types
    ("seed=1.5", r"'seed' must be an integer; got 1.5"),
    ("seed=true", r"'seed' must be an integer; got True"),
    ("data.clients='ten'", r"'data.clients' must be an integer; got 'ten'"),
    ("data.source=5", r"'data.source' must be a string; got 5"),
    ("data=5", r"'data' must be a table; got 5"),
    ("data.groups=5", r"'data.groups' must be a table; got 5"),
    ("data.groups.minority=0.1", r"'data.groups.minority' must be a table; got 0.1"),
    ("data.groups.minority.share='half'", r"'data.groups.minority.share' must be a number; got 'half'"),
    ("data.groups.minority.rotation=25", r"'data.groups.minority.rotation' must be a list; got 25"),
    ("data.groups.minority.rotation=['a', 25]", r"'data.groups.minority.rotation' must be a number; got 'a'"),
    ("local.learning_rate='fast'", r"'local.learning_rate' must be a number; got 'fast'"),
    ("red_team.warm_start=1", r"'red_team.warm_start' must be true or false; got 1"),
    ("algorithm.rounds={}", r"'algorithm.rounds' must be an integer; got a table"),
    # out of range
    ("seed=-1", r"'seed' must be at least 0; got -1"),
    ("data.clients=0", r"'data.clients' must be at least 1; got 0"),
    ("data.shadow_examples=-5", r"'data.shadow_examples' must be at least 0; got -5"),
    ("data.groups.minority.share=-0.1", r"'data.groups.minority.share' must be at least 0.*; got -0.1"),
    ("data.groups.minority.share=1.2", r"'data.groups.minority.share' must be at most 1.*; got 1.2"),
    ("data.groups.minority.share=nan", r"'data.groups.minority.share' must be a finite number; got nan"),
    ("data.groups={}", r"'data.groups' must be not empty"),
    (
        "data.groups.minority.rotation=[1]",
        r"'data.groups.minority.rotation' must be two numbers, \[low, high\]; got \[1\]",
    ),
    (
        "data.groups.minority.rotation=[1, 2, 3]",
        r"'data.groups.minority.rotation' must be two numbers.*got \[1, 2, 3\]",
    ),
    ("data.dirichlet_alpha=0", r"'data.dirichlet_alpha' must be above 0.*; got 0"),
    ("data.dirichlet_alpha=nan", r"'data.dirichlet_alpha' must be a finite number; got nan"),
    ("data.dirichlet_alpha=inf", r"'data.dirichlet_alpha' must be a finite number; got inf"),
    ("algorithm.clusters=0", r"'algorithm.clusters' must be at least 1; got 0"),
    ("algorithm.participation=1.5", r"'algorithm.participation' must be at most 1.*; got 1.5"),
    ("algorithm.participation=nan", r"'algorithm.participation' must be a finite number; got nan"),
    ("algorithm.redraw.share=1", r"'algorithm.redraw.share' must be below 1.*; got 1"),
    ("local.learning_rate=0", r"'local.learning_rate' must be above 0.*; got 0"),
    ("local.learning_rate=inf", r"'local.learning_rate' must be a finite number; got inf"),
    ("local.decay=1.1", r"'local.decay' must be at most 1.*; got 1.1"),
    ("local.weight_decay=-0.1", r"'local.weight_decay' must be at least 0.*; got -0.1"),
    ("privacy.thresholds=[0.5]", r"'privacy.thresholds' must be two numbers, \[low, high\]; got \[0.5\]"),
    ("privacy.beta=[0.1, 2]", r"'privacy.beta' must be .*at most 1"),
    ("model.classes=1", r"'model.classes' must be at least 2; got 1"),
    ("model.classes=1000000000", r"'model.classes' must be at most 1000000; got 1000000000"),
    ("model.hidden=0", r"'model.hidden' must be at least 1; got 0"),
    ("model.filters=[8, 0, 8]", r"'model.filters.*' must be at least 1.*got 0"),
    ("model.filters=[8, 8]", r"'model.filters' must be a list of 3; got \[8, 8\]"),
    ("model.filters=[8, 8, 8, 8]", r"'model.filters' must be a list of 3; got \[8, 8, 8, 8\]"),
    ("model.padding=2", r"'model.padding' must be at most 1; got 2"),
    ("engine.threads=0", r"'engine.threads' must be at least 1; got 0"),
    # one of a few words
    (
        "model.name='mnist'",
        r"'model.name' must be 'digits-cnn', 'mnist-cnn', .* or 'gru' or 'module:Name'; got 'mnist'",
    ),
    (
        "algorithm.name='IFCA'",
        r"'algorithm.name' must be .*'fedavg', .*or 'module:Name'; got 'IFCA'",
    ),
    ("algorithm.averaging='mean'", r"'algorithm.averaging' must be 'model' or 'gradient'; got 'mean'"),
    (
        "red_team.attack='nothing'",
        r"'red_team.attack' must be 'shadow', 'loss-threshold', 'gap',? .*or 'module:Name'; got 'nothing'",
    ),
    ("engine.device='gpu'", r"'engine.device' must be 'cpu' or 'cuda'.*; got 'gpu'"),
    ("engine.precision='auto'", r"'engine.precision' must be 'fp32' or 'bf16'; got 'auto'"),
    # a number or a word
    ("local.batch_size=0", r"'local.batch_size' must be at least 1 or 'all'; got 0"),
    ("local.batch_size='some'", r"'local.batch_size' must be an integer or 'all'; got 'some'"),
    ("privacy.beta=1.5", r"'privacy.beta' must be at most 1.* or 'threshold' or a list; got 1.5"),
    ("privacy.beta='loss'", r"'privacy.beta' must be a number or 'threshold' or a list; got 'loss'"),
    ("red_team.shadow_size='all'", r"'red_team.shadow_size' must be an integer or 'cluster'; got 'all'"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[change for change, _ in BAD])
def test_a_bad_value_is_one_sentence_with_key_value_and_what_is_allowed(base: Path, change: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as refused:
        read_config(base, [change])
    text = str(refused.value)
    assert text.startswith(f"{base}: ")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('source = "digits"', "data.source"),
        ("rounds = 4", "algorithm.rounds"),
        ("share = 0.2", "data.groups.minority.share"),
        ('[model]\nname = "mlp"', "model"),
        ("test_examples = 60", "data.test_examples"),
    ],
)
def test_a_missing_key_or_table_is_named(base: Path, line: str, key: str) -> None:
    assert BASE.count(line) == 1
    base.write_text(BASE.replace(line, ""))
    with pytest.raises(InputError, match=rf"the key '{key}' is missing"):
        read_config(base)


def test_a_mistyped_key_is_called_unknown_rather_than_another_missing(base: Path) -> None:
    """The key that was written is what its writer can find."""
    base.write_text(BASE.replace("rounds = 4", "round = 4"))
    with pytest.raises(InputError, match=r"unknown key 'algorithm.round'; did you mean 'rounds'\?"):
        read_config(base)


def test_an_empty_file_names_the_first_missing_table(base: Path) -> None:
    base.write_text("")
    with pytest.raises(InputError, match=r"base.toml: the key 'data' is missing"):
        read_config(base)


@pytest.mark.parametrize("text", ["seed = ", "[data\nseed = 1", "seed = 1\nseed = 2", "= 5"])
def test_a_file_that_is_not_toml(base: Path, text: str) -> None:
    base.write_text(text)
    with pytest.raises(InputError, match=r"base.toml: is not TOML: "):
        read_config(base)


@pytest.mark.parametrize("path", [r"C:\Users\t.csv", r"C:\data", "C:\\data\\"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_backslash_in_double_quotes_is_named(base: Path, path: str, end: str) -> None:
    base.write_text(f'seed = 1\npath = "{path}"{end}')
    with pytest.raises(InputError, match=r"base.toml: is not TOML: .*backslash in double quotes.*single quotes"):
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


def test_a_file_that_is_not_text(base: Path) -> None:
    base.write_bytes(b"seed = 1 # \xff\xfe")
    with pytest.raises(InputError, match=r"base.toml: is not TOML: "):
        read_config(base)


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
    base.write_text(BASE.replace("epochs = 2\n", ""))
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
        (["model.name=mlp", "model.hidden=7", "model.filters=[1, 2, 3]"], 7, None),
        (["model.name=digits-cnn", "model.hidden=7"], None, None),
    ],
)
def test_sizes_are_decided_for_the_models_that_have_them(base: Path, changes: list[str], hidden, filters) -> None:
    decided, _ = built(base, *changes)
    assert (decided.model.hidden, decided.model.filters) == (hidden, filters)
    assert ("hidden" in decided.toml()) is (hidden is not None)
    assert "filters" not in decided.toml()


@pytest.mark.parametrize(
    ("section", "hidden", "filters"),
    [({}, 256, (32, 64, 128)), ({"hidden": 5, "filters": [2, 3, 4]}, 5, (2, 3, 4))],
)
def test_the_face_network_s_sizes_are_decided_and_built(base: Path, section: dict, hidden, filters) -> None:
    table = tomllib.loads(BASE)
    images = ImageDataset("squares", torch.zeros(400, 1, 24, 22, dtype=torch.uint8), 255, torch.arange(400) % 2, 400, 2)
    found = resolve(parse_config(table | {"model": {"name": "faces-cnn"} | section}, "test"), images)
    assert (found.config.model.hidden, found.config.model.filters) == (hidden, filters)
    network = found.model.network()
    assert (network.first.out_channels, network.second.out_channels, network.third.out_channels) == filters  # pyright: ignore
    assert network.hidden.out_features == hidden  # pyright: ignore


CONTRADICTIONS = {
    "shadow models without a shadow set": (
        ["data.shadow_examples=1"],
        r"'red_team.attack' = \"shadow\" with the \"shadow\" estimator .* 'data.shadow_examples' .* at least 2; got 1",
    ),
    "a loss threshold is found on shadow models": (
        ["data.shadow_examples=0", "red_team.attack=loss-threshold", "red_team.estimator=audit"],
        r"\"loss-threshold\" with the \"audit\" estimator .* 'data.shadow_examples' .* got 0",
    ),
    "the shadow estimator of the gap": (
        ["data.shadow_examples=0", "red_team.attack=gap"],
        r"\"gap\" with the \"shadow\" estimator .* 'data.shadow_examples' .* got 0",
    ),
    "federated without holdout": (
        ["red_team.estimator=federated"],
        r"'red_team.estimator' = \"federated\" needs 'data.holdout_examples' to be at least 1; got 0",
    ),
    "histograms without holdout": (
        ["red_team.estimator=histogram"],
        r"'red_team.estimator' = \"histogram\" needs 'data.holdout_examples' to be at least 1; got 0",
    ),
    "histograms without privacy": (["red_team.histogram_epsilon=0"], r"'red_team.histogram_epsilon' must be .*; got 0"),
    "an attack that is never fitted": (["red_team.refits=0"], r"'red_team.refits' must be at least 1; got 0"),
    "shadow models of another kind": (
        ["red_team.shadow_training=warm"],
        r"'red_team.shadow_training' must be 'pooled' or 'federated'; got 'warm'",
    ),
    "risk that nobody estimates": (
        ["red_team.every=0"],
        r"\[algorithm\]: IFCA-MIR chooses by risk, so the red team's 'every' must be at least 1; got 0",
    ),
    "gradients of epochs": (
        ["algorithm.averaging=gradient"],
        r"\[algorithm\]: .*averaging.*gradient.* 'steps' = 1",
    ),
    "more clusters than clients": (
        ["algorithm.clusters=11"],
        r"'algorithm.clusters' must be at most 'data.clients' = 10; got 11",
    ),
    "a test set without an example of each group": (
        ["data.test_examples=1"],
        r"'data.test_examples' must be at least one for each of 2 groups; got 1",
    ),
    "epochs and steps": (
        ["local.steps=3"],
        r"base.toml: \[local\]: .*either epochs or steps; got epochs = 2 and steps = 3",
    ),
    "a label that the model lacks": (
        ["model.classes=9"],
        r"digits has the label 9, but the model has 9 classes; set 'model.classes' to 10 or more",
    ),
    "a network for larger images": (
        ["model.name=vgg11"],
        r"\[model\]: model 'vgg11' takes square images of at least 32x32",
    ),
    "more images than there are": (["data.clients=100"], r"\[data\]: .* 2,160 images .* but digits has 1,797"),
    "shares": (["data.groups.minority.share=0.3"], r"must sum to 1; 0.3 \(minority\) \+ 0.8 \(majority\) sum to 1.1"),
    "no share at all": (
        ["data.groups.minority.share=0", "data.groups.majority.share=0"],
        r"\[data\]: at least one .*share.* must be above 0; got 0 \(minority\) \+ 0 \(majority\)",
    ),
    "a test set without an example of a group without clients": (
        ["data.groups.unrotated.share=0", "data.test_examples=2"],
        r"'data.test_examples' must be at least one for each of 3 groups; got 2",
    ),
    "a group of nobody": (
        ["data.groups.minority.share=0.01", "data.groups.majority.share=0.99"],
        r"\[data\]: .*minority.* 0.01 of 10 clients.* is no client",
    ),
    "a range the wrong way round": (
        ["data.groups.minority.rotation=[25, 0]"],
        r"base.toml: \[data.groups.minority\]: .*rotation' must be \[low, high\] with low <= high; got \[25, 0\]",
    ),
    "brightness below zero": (
        ["data.groups.minority.brightness=[-1, 1]"],
        r"base.toml: .*brightness' must be at least 0",
    ),
    "thresholds below chance": (["privacy.thresholds=[0.3, 0.8]"], r"\[privacy\]: .*thresholds.* got \[0.3, 0.8\]"),
    "betas for other clients": (
        ["privacy.beta=[0.1, 0.2]"],
        r"\[privacy\]: .*beta' .* each of 10 clients; got 2 numbers",
    ),
    "beta from one threshold": (
        ["privacy.thresholds=[0.7, 0.7]"],
        r"\[privacy\]: .*beta' = .threshold. needs .*thresholds.* with low < high",
    ),
    "a source that does not exist": (["data.source=digit"], r"unknown data source 'digit'; did you mean 'digits'\?"),
    "a path for digits": (["data.path=somewhere"], r"'digits' comes with scikit-learn and takes no path"),
}


def test_a_billion_clients_are_refused_before_anything_is_allocated_for_them(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("draw_preferences", "_check_tables"):
        monkeypatch.setattr(f"shoal.config.build.{name}", lambda *_: pytest.fail("allocates by the number of clients"))
    with pytest.raises(InputError, match=r"\[data\]: the partition needs 20,000,000,160 images"):
        built(base, "data.clients=1000000000")


@pytest.mark.parametrize("case", list(CONTRADICTIONS))
def test_build_refuses(base: Path, case: str) -> None:
    changes, sentence = CONTRADICTIONS[case]
    with pytest.raises(InputError, match=sentence):
        built(base, *changes)


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
    "fedavg whatever clusters says": ["algorithm.name=fedavg", "algorithm.clusters=11"],
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
    base.write_text(BASE.replace("epochs = 2", "steps = 1"))
    assert setup_of(base, "algorithm.averaging=gradient").local.steps == 1
    with pytest.raises(InputError, match=r"\[algorithm\]: .* 'steps' = 1"):
        built(base, "algorithm.averaging=gradient", "local.steps=2")


def test_a_byte_order_mark_is_tolerated(base: Path) -> None:
    before = read_config(base)
    base.write_bytes(b"\xef\xbb\xbf" + base.read_bytes())
    assert read_config(base) == before
