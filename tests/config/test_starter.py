"""What `shoal init` writes can be run as it is."""

import tomllib

import pytest

from shoal.algorithms import ALGORITHMS
from shoal.config.build import load_data, resolve
from shoal.config.schema import parse_config
from shoal.config.starter import SOURCES, starter, write_starter
from shoal.core.errors import InputError

DIGITS = load_data(parse_config(tomllib.loads(starter("digits", "fedavg")), "digits").data)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_can_be_run_with_its_comments_as_keys(algorithm):
    text = starter("digits", algorithm)
    table = tomllib.loads(text)
    if algorithm == "fedbn":  # The networks of digits have no batch norm.
        with pytest.raises(InputError, match="FedBN needs a network with batch norm"):
            resolve(parse_config(table, "starter"), DIGITS)
        table["algorithm"]["layers"] = "last"
    assert resolve(parse_config(table, "starter"), DIGITS).config.algorithm.name == algorithm
    keys = [line.removeprefix("# ") for line in text.partition("rounds = 15")[2].partition("[local]")[0].splitlines()]
    commented = tomllib.loads("\n".join(keys))
    plain = tomllib.loads(text)
    assert parse_config({**plain, "algorithm": plain["algorithm"] | commented}, "starter") == parse_config(plain, "-")


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_is_a_configuration(source):
    text = starter(source, "ifca", "mine.toml")
    assert parse_config(tomllib.loads(text), "starter").data.source == source
    assert "shoal run mine.toml" in text
    assert max(map(len, text.splitlines())) <= 160
    assert not any(line.endswith("-") for line in text.splitlines()), "no name of an algorithm is broken"


def test_the_groups_in_its_comments_are_groups():
    lines = starter("digits", "ifca").splitlines()
    first = lines.index("# [data.groups.few]")
    lines[first : first + 6] = [line.removeprefix("# ") for line in lines[first : first + 6]]
    groups = parse_config(tomllib.loads("\n".join(lines)), "starter").data.groups
    assert {name: group.share for name, group in groups.items()} == {"few": 0.2, "many": 0.8}


def test_nothing_is_overwritten_and_nothing_else_is_guessed(tmp_path):
    path = tmp_path / "run.toml"
    write_starter(path)
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write_starter(path)
    assert path.read_text() == "mine"
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        write_starter(tmp_path / "nowhere" / "run.toml")
    with pytest.raises(InputError, match=r"'--data' is not a source with a first configuration \(got 'digit'\)"):
        write_starter(tmp_path / "other.toml", "digit")
    with pytest.raises(InputError, match=r"'ifka'.*'ifca'"):
        write_starter(tmp_path / "other.toml", algorithm="ifka")
    assert [each.name for each in tmp_path.iterdir()] == ["run.toml"]
