"""The declarations are the schema: each is read, written and documented, and a user's own class as a shipped one."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from shoal.algorithms import ALGORITHMS, IFCA, FedAvg, FedProx
from shoal.attacks import MEMBERSHIP_ATTACKS
from shoal.audit import RedTeam
from shoal.config import build as building
from shoal.config.build import build, load_data, resolve
from shoal.config.kinds import name_of
from shoal.config.schema import Config, EngineSettings, parse_config, read_config
from shoal.config.settings_tables import keys_of, read, table_of
from shoal.control import Coordinator, RiskPrediction
from shoal.core.errors import InputError
from shoal.defenses import (
    CCL,
    DPSGD,
    L2,
    Augmentation,
    Dropout,
    Flooding,
    LaplaceNoise,
    Mixup,
    NormClipping,
    RelaxLoss,
    ShorterTraining,
)
from shoal.engine import LocalSGD, TorchOptimizer
from shoal.property import scenario
from shoal.runs.comparison import compare
from shoal.runs.result import load
from shoal.runs.run import Run, run

DATA = {"source": "digits", "clients": 6, "examples_per_client": 20, "shadow_examples": 60, "test_examples": 60}
BASE = {
    "data": DATA,
    "model": {"name": "mlp", "hidden": 8},
    "algorithm": {"name": "fedavg", "rounds": 2},
    "local": {"steps": 1, "batch_size": 10},
    "red_team": {"every": 0, "attack": "gap"},
}
MODULE = '''
from typing import ClassVar

import torch
from shoal import ImageDataset, L2, FedAvg
from shoal.attacks import Gap
from shoal.core.settings import Positive, settings
from shoal.engine import Algorithm

@settings
class Mine(FedAvg):
    """FedAvg."""
    strength: Positive = 1

@settings
class Titled(FedAvg):
    title: ClassVar[str] = "Averages of mine"

@settings
class Wrapper(FedAvg):
    base: Algorithm = FedAvg()

@settings
class Guess(Gap):
    pass

@settings
class Weak(L2):
    pass

def plain():
    return FedAvg()

class Unsettled:
    pass

@settings
class Idle:
    pass

class Net(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.output = torch.nn.Linear(shape.inputs, shape.classes)

    def forward(self, x):
        return self.output(x.flatten(1))

def random_images(path, task):
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (400, 1, 6, 6), generator=draw, dtype=torch.uint8)
    return ImageDataset("mine", pixels, 255, torch.arange(400) % 3, 400, 3)

def nothing(path, task):
    return path, task

def failing(path, task):
    return {"x": 1}["y"]
'''


def config_of(**tables: Any) -> Config:
    return parse_config(BASE | tables, "test")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a user's module ``own``, which is the current directory."""
    (tmp_path / "own.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import torch\nnonsense(")
    (tmp_path / "raising.py").write_text("one = 1\none / 0\n")
    (tmp_path / "needing.py").write_text("import nowhere\n")
    (tmp_path / "elsewhere.py").write_text("from own import Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("own", "broken", "elsewhere"):
        sys.modules.pop(name, None)


# --- every declaration ---------------------------------------------------------------------------------------------

CANDIDATES: list[Any] = [
    3,
    4,
    0.25,
    True,
    False,
    {},
    {"name": "ifca"},
    {"name": "ifca-mir"},
    {"name": "Adam"},
    [0.5],
    [0, 1],
    [2, 3],
    "Adam",
    {"momentum": 0.5},
]


def another(cls: type, key: Any) -> object:
    """A value that a file can give to a key, and that is not its default."""
    literals = [each for hint in (key.hint, *get_args(key.hint)) for each in get_args(hint)]
    for each in [*CANDIDATES, *literals]:
        try:
            value = read(cls, required(cls, key.name) | {key.name: each})
        except InputError:
            continue
        if getattr(value, key.field) != key.default:
            return each
    raise AssertionError(f"{cls.__name__}.{key.name} takes none of the candidates")


def required(cls: type, name: str = "") -> dict[str, Any]:
    """The keys that a table needs beside the key ``name``."""
    together = {"noise": {"min_clients": 3}, "min_clients": {"noise": "sum"}}
    tables = {DPSGD: {"noise_multiplier": 1.0}, TorchOptimizer: {"name": "SGD"}, RelaxLoss: {"alpha": 1.0}}
    return tables.get(cls, {}) | (together.get(name, {}) if cls is DPSGD else {})


DECLARED = [
    (cls, key)
    for cls in (
        *ALGORITHMS.values(),
        *MEMBERSHIP_ATTACKS.values(),
        RedTeam,
        LocalSGD,
        TorchOptimizer,
        DPSGD,
        Dropout,
        L2,
        NormClipping,
        LaplaceNoise,
        Augmentation,
        Mixup,
        Flooding,
        RelaxLoss,
        CCL,
        ShorterTraining,
        Coordinator,
        RiskPrediction,
    )
    for key in keys_of(cls)
    if not key.inline
]


@pytest.mark.parametrize(("cls", "key"), DECLARED, ids=[f"{cls.__name__}.{key.name}" for cls, key in DECLARED])
def test_every_key_is_read_and_written_and_read_again(cls, key):
    value = read(cls, required(cls, key.name) | {key.name: another(cls, key)})
    assert getattr(value, key.field) != key.default
    assert read(cls, table_of(value)) == value


@pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=lambda cls: cls.__name__)
def test_every_algorithm_is_read_by_its_name_and_survives_a_file(cls, tmp_path):
    config = config_of(algorithm={"name": cls.name, "rounds": 3})
    assert config.algorithm.value == cls()
    assert (config.algorithm.name, config.algorithm.value.title) == (cls.name, cls.title)
    path = tmp_path / "config.toml"
    path.write_text(config.toml())
    assert read_config(path) == config


@pytest.mark.parametrize("cls", MEMBERSHIP_ATTACKS.values(), ids=lambda cls: cls.__name__)
def test_every_attack_is_read_by_its_name_and_survives_a_file(cls, tmp_path):
    config = config_of(red_team={"every": 0, "attack": cls.name, "shadow_models": 4})
    assert config.red_team.attack == cls()
    assert config.red_team.shadow_models.number == 4
    path = tmp_path / "config.toml"
    path.write_text(config.toml())
    assert read_config(path) == config


def written_again(config: Config, path: Path) -> Config:
    path.write_text(config.toml())
    return read_config(path)


@pytest.mark.parametrize("cls", [cls for cls in ALGORITHMS.values() if hasattr(cls, "base")])
def test_an_algorithm_s_base_is_any_other_s_table(cls, tmp_path):
    for base in ALGORITHMS.values():
        config = config_of(algorithm={"name": cls.name, "rounds": 2, "base": {"name": base.name}})
        assert config.algorithm.value == cls(base=base())
        assert written_again(config, tmp_path / "config.toml") == config
    inner = {"name": "fedprox", "mu": 0.5, "base": {"name": "ifca", "clusters": 9}}
    config = config_of(algorithm={"name": cls.name, "rounds": 2, "base": inner})
    assert config.algorithm.value == cls(base=FedProx(IFCA(clusters=9), mu=0.5))
    assert written_again(config, tmp_path / "config.toml") == config
    with pytest.raises(InputError, match=r"'algorithm.clusters' must be at most 'data.clients' = 6; got 9"):
        build(config)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"algorithm": {"name": "shared-body", "head": "outputs"}},
            "[algorithm]: 'head' must be 'last' or a layer of the network, ",
        ),
        (
            {"algorithm": {"name": "fedrep", "head": "outputs"}, "local": {"epochs": 3}},
            "[algorithm]: 'head' must be 'last' or a layer of the network, ",
        ),
        (
            {"algorithm": {"name": "fedopt", "base": {"name": "shared-body"}}, "model": {"name": "logistic"}},
            "[algorithm]: a shared body needs a network of several layers with parameters",
        ),
        (
            {"algorithm": {"name": "priced-choice", "prices": [0.1], "base": {"name": "ifca-mir", "clusters": 3}}},
            "[algorithm]: 'prices' must be one number for each of 3 models, or left out; got 1",
        ),
        (
            {"algorithm": {"name": "cluster-size-floor", "base": {"name": "fedavg"}}},
            "[algorithm]: ClusterSizeFloor's 'base' must be IFCA, ",
        ),
        (
            {"algorithm": {"name": "ifca-within-limit"}},
            "[algorithm]: IFCA within limits chooses by risk, so the red team's 'every' must be at least 1; got 0",
        ),
    ],
    ids=str,
)
def test_what_an_algorithm_cannot_do_is_told_before_anything_is_written(changes, sentence, tmp_path):
    algorithm = {"rounds": 2} | changes["algorithm"]
    with pytest.raises(InputError) as refused:
        run(config_of(**changes | {"algorithm": algorithm}), tmp_path / "run")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["local", "algorithm.local"])
def test_an_optimizer_of_torch_is_a_table(where, tmp_path):
    optimizer = {"name": "Adam", "options": {"betas": [0.9, 0.99], "amsgrad": True}}
    local = {"steps": 2, "batch_size": "all", "optimizer": optimizer}
    algorithm = {"name": "ditto", "rounds": 1}
    own = where == "algorithm.local"
    config = config_of(algorithm=algorithm | {"local": local}) if own else config_of(algorithm=algorithm, local=local)
    # Tuples as PyTorch has them and lists as TOML does are the same options.
    options = {"betas": (0.9, 0.99), "amsgrad": True}
    assert resolve(config, load_data(config.data)).config.engine.backend == "loop"
    with pytest.raises(InputError, match=r"\[engine\]: backend 'vmap' trains by SGD alone"):
        build(replace(config, engine=EngineSettings(backend="vmap")))
    expected = LocalSGD(steps=2, batch_size="all", optimizer=TorchOptimizer("Adam", options))
    assert (config.algorithm.value.local if own else config.local) == expected
    assert written_again(config, tmp_path / "config.toml") == config
    run(config, tmp_path / "run")
    run(config, tmp_path / "run", resume=True)


def test_defenses_are_applied_in_one_order_and_those_left_out_are_not():
    assert config_of().defenses.all() == ()
    table = {"max_update_norm": 2.0, "l2": 0.1, "dropout": 0.2, "dp_sgd": {"noise_multiplier": 0.5}}
    config = config_of(defenses=table)
    assert config.defenses.all() == (Dropout(0.2), L2(0.1), DPSGD(1.0, 0.5), NormClipping(2.0))
    assert table_of(config.defenses) == table | {"dp_sgd": table_of(DPSGD(1.0, 0.5))}
    table = {
        "max_update_norm": 2.0, "share_of_steps": 0.5, "augmentation": {}, "relaxloss": {"alpha": 0.5}, "mixup": 0.4,
        "flooding": 0.3, "ccl": {"variant": "ccql"},
    }  # fmt: skip
    every = config_of(defenses=table).defenses.all()
    losses = (Mixup(0.4), Flooding(0.3), RelaxLoss(0.5), CCL("ccql"))
    assert every == (ShorterTraining(0.5), Augmentation(), *losses, NormClipping(2.0))


# --- keys of others ------------------------------------------------------------------------------------------------


def test_keys_of_other_algorithms_and_attacks_are_left_out():
    keys = {"clusters": 3, "choose_by": "batch", "redraw": {"share": 0.1}, "rounds": 2}
    config = config_of(algorithm={"name": "fedavg"} | keys, red_team={"attack": "gap", "per_class": False})
    assert config.algorithm.value == FedAvg()
    assert table_of(config.algorithm) == {
        "name": "fedavg",
        "weighting": "examples",
        "rounds": 2,
        "participation": 1.0,
    }
    assert "per_class" not in table_of(config.red_team)
    assert config_of(algorithm={"name": "ifca"} | keys).algorithm.value.clusters == 3


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        (
            {"algorithm": {"name": "fedavg", "rounds": 2, "cluster": 3}},
            "unknown key 'algorithm.cluster'; did you mean 'clusters'?",
        ),
        (
            {"red_team": {"attack": "gap", "per_clas": True}},
            "unknown key 'red_team.per_clas'; did you mean 'per_class'?",
        ),
        ({"local": {"gradient_privacy": 1}}, "unknown key 'local.gradient_privacy'; "),
        ({"local": {"dropout": 0.1}}, "unknown key 'local.dropout'; "),
        (
            {"algorithm": {"name": "ditto", "rounds": 2, "local": {"dropout": 0.1}}},
            "unknown key 'algorithm.local.dropout'; ",
        ),
        ({"local": {"optimizer": {"name": "Adam", "option": {}}}}, "'local.optimizer.option'; did you mean 'options'?"),
        ({"local": {"optimizer": {"name": "Adamm"}}}, "test: [local.optimizer]: torch.optim has no optimizer 'Adamm'"),
        ({"local": {"optimizer": {}}}, "the key 'local.optimizer.name' is missing"),
        ({"local": {"optimizer": "Adam"}}, "'local.optimizer' must be a table; got 'Adam'"),
        ({"algorithm": {"rounds": 2}}, "the key 'algorithm.name' is missing"),
        ({"algorithm": {"name": 5, "rounds": 2}}, "'algorithm.name' must be 'apfl', "),
    ],
    ids=str,
)
def test_other_keys_are_one_sentence(tables, sentence):
    with pytest.raises(InputError) as refused:
        config_of(**tables)
    assert f"test: {sentence}" in str(refused.value) or sentence in str(refused.value)
    assert "\n" not in str(refused.value)


# --- a user's own --------------------------------------------------------------------------------------------------


def test_a_user_s_own_algorithm_attack_defence_network_and_data_are_run(own):
    config = config_of(
        data=DATA | {"source": "own:random_images"},
        model={"name": "own:Net"},
        algorithm={"name": "own:Mine", "rounds": 2, "strength": 3, "weighting": "equal", "clusters": 7},
        red_team={"every": 0, "attack": "own:Guess"},
        defenses={"custom": {"weak": {"name": "own:Weak", "l2": 0.5}}},
    )
    assert table_of(config.algorithm) == {
        "name": "own:Mine", "weighting": "equal", "strength": 3, "rounds": 2, "participation": 1.0,
    }  # fmt: skip
    decided, simulation = build(config)
    assert (simulation.algorithm.strength, len(simulation.federation), decided.model.classes) == (3, 6, 3)
    path = own / "again.toml"
    path.write_text(decided.toml())
    assert read_config(path) == decided


def test_a_run_with_a_user_s_own_algorithm_can_be_resumed(own):
    config = config_of(algorithm={"name": "own:Mine", "rounds": 1})
    run(config, own / "run")
    assert read_config(own / "run" / "config.toml", allow_code=True).algorithm == config.algorithm
    run(config, own / "run", resume=True)


def test_pages_and_comparisons_call_an_own_algorithm_by_the_title_that_its_class_declares(own):
    titled, inherited = (config_of(algorithm={"name": f"own:{name}", "rounds": 1}) for name in ("Titled", "Mine"))
    results = [load(run(config, own / f"run{i}"), allow_code=True) for i, config in enumerate((titled, inherited))]
    assert [result.description.title.partition(" on ")[0] for result in results] == ["Averages of mine", "Mine"]
    assert "Averages of mine has " in results[0]._repr_html_()
    assert list(compare(results).settings.columns) == ["Averages of mine", "Mine"]
    Run(build(titled)[1], own / "python").train()
    assert load(own / "python").description.algorithm_title == "Averages of mine"


def test_a_wrapper_s_base_is_a_table_of_any_algorithm(own):
    algorithm = {"name": "own:Wrapper", "rounds": 2}
    assert config_of(algorithm=algorithm).algorithm.value.base == FedAvg()
    config = config_of(algorithm=algorithm | {"base": {"name": "ifca", "clusters": 3, "weighting": "examples"}})
    assert config.algorithm.value.base == IFCA(3, weighting="examples")
    assert table_of(config.algorithm)["base"] == {"name": "ifca"} | table_of(IFCA(3, weighting="examples"))
    assert config_of(algorithm=algorithm | {"base": {"weighting": "equal"}}).algorithm.value.base == FedAvg("equal")
    for base, sentence in (
        ({"cluster": 3}, "unknown key 'algorithm.base.cluster'; did you mean 'clusters'?"),
        ({"name": "ifca", "clusters": 0}, "'algorithm.base.clusters' must be at least 1; got 0"),
        (
            {"name": "ifca", "clusters": 9, "redraw": {"share": 0.5}},
            "test: [algorithm.base]: 'redraw.share' * clusters must be at most 1",
        ),
        (5, "'algorithm.base' must be a table; got 5"),
    ):
        with pytest.raises(InputError) as refused:
            config_of(algorithm=algorithm | {"base": base})
        assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:Mine", "'algorithm.name' = 'nowhere:Mine': cannot import 'nowhere': there is no 'nowhere' in "),
        ("broken:Mine", "cannot import 'broken': SyntaxError: "),
        ("raising:Mine", "cannot import 'raising': ZeroDivisionError: division by zero ("),
        ("raising:Mine", "raising.py, line 2)"),
        ("needing:Mine", "cannot import 'needing': ModuleNotFoundError: No module named 'nowhere' ("),
        (":Mine", "cannot import ''"),
        ("own:Mien", "the module has no class or function 'Mien'; did you mean 'Mine'?"),
        (
            "own:__name__",
            "the module has no class or function '__name__'; known: Guess, Idle, Mine, Net, Titled, Unsettled, Weak, "
            "Wrapper, failing, nothing, plain, random_images",
        ),
        ("own:plain", "'algorithm.name' = 'own:plain' must be a class with the decorator @settings"),
        ("own:Unsettled", "must be a class with the decorator @settings"),
        ("own:Idle", "'algorithm.name' = 'own:Idle' is not an algorithm: it has no '"),
        ("own:Weak", "'algorithm.name' = 'own:Weak' is not an algorithm: it has no '"),
        ("elsewhere:Mine", "'algorithm.name' = 'elsewhere:Mine' is defined elsewhere; call it 'own:Mine'"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence(own, name, sentence):
    with pytest.raises(InputError) as refused:
        config_of(algorithm={"name": name, "rounds": 2})
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"red_team": {"attack": "own:Mine"}}, "'red_team.attack' = 'own:Mine' is not a membership-inference attack"),
        (
            {"defenses": {"custom": {"a": {"name": "own:Mine"}}}},
            "'defenses.custom.a.name' = 'own:Mine' is not a defence",
        ),
        (
            {"defenses": {"custom": {"a": {"name": "weak"}}}},
            "'defenses.custom.a.name' must be 'module:Name'; got 'weak'",
        ),
        ({"defenses": {"custom": {"a": {"l2": 1.0}}}}, "the key 'defenses.custom.a.name' is missing"),
        (
            {"data": DATA | {"source": "own:nothing"}},
            "[data]: the inputs of 'own:nothing' must be numbers; got None",
        ),
        (
            {"data": DATA | {"source": "threadpoolctl:threadpool_info"}},
            "[data]: 'source' = 'threadpoolctl:threadpool_info' failed with TypeError: threadpool_info() takes ",
        ),
        ({"data": DATA | {"source": "own:failing"}}, "[data]: 'source' = 'own:failing' failed with KeyError: 'y' ("),
        ({"data": DATA | {"source": "own:failing"}}, "own.py, line "),
        (
            {"evaluation": {"attacks": ["own:Net"]}},
            "'evaluation.attacks' = 'own:Net' must be a class that is made without",
        ),
        ({"evaluation": {"attacks": ["own:Unsettled"]}}, "[evaluation]: 'attacks' must hold attacks on scores"),
        ({"evaluation": {"metrics": ["own:Unsettled"]}}, "'evaluation.metrics' must be a Measurement, values with"),
        ({"data": DATA | {"source": "own:none"}}, "[data]: 'source' = 'own:none': the module has no class or function"),
        ({"model": {"name": "own:Nets"}}, "[model]: 'name' = 'own:Nets': the module has no class or function 'Nets'"),
    ],
    ids=str,
)
def test_names_of_the_wrong_kind_are_one_sentence(own, tables, sentence):
    with pytest.raises(InputError) as refused:
        build(config_of(**tables))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_names_are_those_of_files():
    assert [name_of(cls) for cls in (FedAvg, IFCA, DPSGD)] == ["fedavg", "ifca", "shoal.defenses.dp_sgd:DPSGD"]


# --- resolved once -------------------------------------------------------------------------------------------------


def test_each_random_part_of_a_federation_is_drawn_once(monkeypatch):
    """A configuration is resolved once, and its simulation made of what that found."""
    calls = []
    for name in ("draw_preferences", "draw_property_partition", "load_dataset"):
        module = building if hasattr(building, name) else scenario
        original = getattr(module, name)

        def counted(*given, original=original, name=name, **named):
            calls.append(name)
            return original(*given, **named)

        monkeypatch.setattr(module, name, counted)
    data = DATA | {"task": "class/thick", "clients": 3, "examples_per_client": 200}
    build(config_of(data=data, property_attack={"mode": "active", "period": 2}))
    assert sorted(calls) == ["draw_preferences", "draw_property_partition", "load_dataset"]


def test_resolving_copies_no_example():
    config = config_of()
    data = load_data(config.data)
    found = resolve(config, data)
    assert found.data is data
    assert found.config.model.classes == 10
    assert resolve(found.config, data).config == found.config
