"""The declarations are the schema: each is read, written and documented, and a user's own class as a shipped one."""

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
from shoal.control import LimitController, RiskPrediction
from shoal.core.errors import InputError
from shoal.defenses import (
    CCL,
    DEFENSES,
    DPSGD,
    L2,
    Augmentation,
    Dropout,
    Flooding,
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


def config_of(**tables: Any) -> Config:
    return parse_config(BASE | tables, "test")


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
        *DEFENSES.values(),
        LimitController,
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


def written_again(config: Config, path: Path) -> Config:
    path.write_text(config.toml())
    return read_config(path)


@pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=lambda cls: cls.__name__)
def test_every_algorithm_is_read_by_its_name_and_survives_a_file(cls, tmp_path):
    config = config_of(algorithm={"name": cls.name, "rounds": 3})
    assert config.algorithm.value == cls()
    assert (config.algorithm.name, config.algorithm.value.title) == (cls.name, cls.title)
    assert written_again(config, tmp_path / "config.toml") == config


@pytest.mark.parametrize("cls", MEMBERSHIP_ATTACKS.values(), ids=lambda cls: cls.__name__)
def test_every_attack_is_read_by_its_name_and_survives_a_file(cls, tmp_path):
    config = config_of(red_team={"every": 0, "attack": cls.name, "shadow_models": 4})
    assert config.red_team.attack == cls()
    assert config.red_team.shadow_models.number == 4
    assert written_again(config, tmp_path / "config.toml") == config


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
    with pytest.raises(InputError, match=r"must be at most .* 6"):
        build(config)


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
    with pytest.raises(InputError, match=r"\[engine\]: backend 'vmap' cannot train"):
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


def test_keys_of_other_attacks_are_left_out_and_of_other_algorithms_refused():
    keys = {"clusters": 3, "choose_by": "batch", "redraw": {"share": 0.1}, "rounds": 2}
    assert "per_class" not in table_of(config_of(red_team={"attack": "gap", "per_class": False}).red_team)
    assert config_of(algorithm={"name": "ifca"} | keys).algorithm.value.clusters == 3
    for key in set(keys) - {"rounds"}:
        with pytest.raises(InputError, match=f"'algorithm.{key}'.* 'fedavg'"):
            config_of(algorithm={"name": "fedavg", "rounds": 2, key: keys[key]})
    with pytest.raises(InputError, match=r"'algorithm.base.clusters'.* 'fedavg'"):
        config_of(algorithm={"name": "fedopt", "rounds": 2, "base": {"clusters": 2}})


# --- a user's own --------------------------------------------------------------------------------------------------


def test_a_user_s_own_algorithm_attack_defence_network_and_data_are_run(own):
    config = config_of(
        data=DATA | {"source": "own:random_images"},
        model={"name": "own:Net"},
        algorithm={"name": "own:Mine", "rounds": 2, "strength": 3, "weighting": "equal"},
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
        ({"name": "ifca", "clusters": 0}, "'algorithm.base.clusters' must be at least 1 or 'auto' (got 0"),
        (
            {"name": "ifca", "clusters": 9, "redraw": {"share": 0.5}},
            "test: [algorithm.base]: 'redraw.share' times 'clusters' must be at most 1",
        ),
        (5, "'algorithm.base' must be a table (got 5)"),
    ):
        with pytest.raises(InputError) as refused:
            config_of(algorithm=algorithm | {"base": base})
        assert sentence in str(refused.value)


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


def test_a_resolved_configuration_resolves_to_itself():
    config = config_of()
    data = load_data(config.data)
    found = resolve(config, data)
    assert found.config.model.classes == 10
    assert resolve(found.config, data).config == found.config
