"""An installed package adds an algorithm, an attack, a defence and a data source by entry points."""

import sys
from pathlib import Path

import pytest

from shoal.cli.app import main
from shoal.config.build import build
from shoal.config.kinds import name_of
from shoal.config.schema import parse_config, read_config
from shoal.core.errors import InputError
from shoal.data import availability

MODULE = '''
from shoal import L2, FedAvg
from shoal.attacks import Gap
from shoal.core.settings import Positive, settings

@settings
class Sticky(FedAvg):
    """FedAvg."""
    strength: Positive = 1

@settings
class Guess(Gap):
    pass

@settings
class Weak(L2):
    pass

def columns(path, task):
    return [[float(i), i % 3] for i in range(90)], [i % 2 for i in range(90)]
'''
POINTS = """
[shoal.algorithms]
sticky = sticky_package:Sticky
[shoal.attacks]
guess = sticky_package:Guess
[shoal.defenses]
weak = sticky_package:Weak
[shoal.sources]
columns = sticky_package:columns
"""
TABLE = {
    "data": {"source": "columns", "clients": 3, "examples_per_client": 8, "test_examples": 20, "shadow_examples": 20},
    "model": {"name": "logistic"},
    "algorithm": {"name": "sticky", "rounds": 1, "strength": 3},
    "red_team": {"every": 0, "attack": "guess"},
    "defenses": {"custom": {"mine": {"name": "weak", "l2": 0.2}}},
}


def distribution(folder: Path, name: str, points: str) -> None:
    """An installed package without code: its metadata in ``folder``."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of installed packages, in which one adds a name to each group."""
    (tmp_path / "sticky_package.py").write_text(MODULE)
    distribution(tmp_path, "sticky", POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("sticky_package", None)


def test_names_of_an_installed_package_are_read_built_and_written(packages):
    config, simulation = build(parse_config(TABLE, "test"))
    assert (type(simulation.algorithm).__name__, simulation.algorithm.strength) == ("Sticky", 3)
    assert [type(value).__name__ for value in (simulation.red_team.attack, simulation.defenses[0])] == ["Guess", "Weak"]
    assert (len(simulation.federation), name_of(type(simulation.algorithm))) == (3, "sticky")
    path = packages / "config.toml"
    path.write_text(config.toml())
    assert read_config(path, allow_code=False) == config, "installed names are no code of the file's"
    by_module = TABLE | {"algorithm": TABLE["algorithm"] | {"name": "sticky_package:Sticky"}}
    assert parse_config(by_module, "test").algorithm.name == "sticky"


def test_installed_names_are_listed_and_suggested(packages, capsys):
    assert "columns" in [source.name for source in availability(None)]
    assert main(["init", str(packages / "mine.toml"), "--algorithm", "sticky"]) == 0
    assert "# strength = 1" in (packages / "mine.toml").read_text()
    assert main(["init", str(packages / "other.toml"), "--algorithm", "stick"]) == 2
    assert "did you mean 'sticky'?" in capsys.readouterr().err
    for section, key in (("algorithm", "name"), ("red_team", "attack"), ("data", "source")):
        almost = {key: TABLE[section][key][:-1]}
        with pytest.raises(InputError, match=f"did you mean '{TABLE[section][key]}'"):
            build(parse_config(TABLE | {section: TABLE[section] | almost}, "test"))


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        (
            "[shoal.algorithms]\nsticky = other:Sticky\n",
            "'sticky' and 'other' both define 'sticky'",
        ),
        (
            "[shoal.algorithms]\nfedavg = other:FedAvg\n",
            "'shoal' and 'other' both define 'fedavg'",
        ),
        ("[shoal.sources]\ndigits = other:load\n", "'shoal' and 'other' both define 'digits'"),
    ],
)
def test_a_name_that_is_taken_twice_names_both_packages(packages, points, sentence):
    distribution(packages, "other", points)
    with pytest.raises(InputError, match=sentence):
        parse_config(TABLE, "test")


def test_an_installed_name_whose_code_is_gone_is_one_sentence(packages):
    (packages / "sticky_package.py").write_text("")
    with pytest.raises(InputError, match="the module has no class or function 'Sticky'"):
        parse_config(TABLE, "test")
