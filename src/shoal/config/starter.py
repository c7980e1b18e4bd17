"""A first configuration for a named source and algorithm, with further keys as comments."""

import json
from dataclasses import is_dataclass
from pathlib import Path

from shoal.config.kinds import KINDS, kind_of
from shoal.config.settings_tables import keys_of, meanings
from shoal.core.errors import InputError, require, suggest
from shoal.data.sources.named_tables import NAMED_TABLES
from shoal.engine import Algorithm

_PARTITION = """clients = 50
examples_per_client = 20
test_examples = {test}
shadow_examples = 400      # the server's examples, for the red team's shadow models
# Groups of clients with different images. Algorithms do not see the groups.
# [data.groups.few]
# share = 0.2
# rotation = [0, 0]        # degrees, from and to
# [data.groups.many]
# share = 0.8
# rotation = [180, 180]
"""

_FRACTION = "shadow_fraction = 0.2      # share of each client's examples for the red team's shadow models\n"

SOURCES = {
    "digits": (_PARTITION.format(test=300), "digits-cnn"),
    "mnist": (_PARTITION.format(test=2000), "mnist-cnn"),
    "fashion-mnist": (_PARTITION.format(test=2000), "mnist-cnn"),
    "emnist-byclass": (_PARTITION.format(test=2000), "femnist-cnn"),
    "cifar10": (_PARTITION.format(test=2000), "vgg11"),
    "folder": (
        'path = "pictures"          # CLIENT/CLASS/*.png, or a CSV file with the columns client, class and path\n'
        f"# size = [64, 64]         # height and width, if the pictures differ in size\n{_FRACTION}",
        "mlp",
    ),
    "table": (
        'path = "patients.csv"      # or .parquet\n'
        'client = "clinic"          # the column with the clients\' names\n'
        'label = "outcome"          # the column to predict: words or integers\n'
        '# group = "area"           # the column with groups of clients\n'
        '# inputs = ["age", "sex"]  # the columns to learn from; by default all other columns\n'
        '# impute = "median"        # the replacement of empty cells; "most-frequent" for words\n'
        f"# min_examples = 5         # leaves out clients with fewer rows\n{_FRACTION}",
        "mlp",
    ),
    **{
        name: (f"# client: {table.client}; label: {table.label}; inputs: {', '.join(table.inputs)}\n{_FRACTION}", "mlp")
        for name, table in NAMED_TABLES.items()
    },
}
"""The keys of [data] after ``source``, and a network, for each source."""


def write_starter(path: Path, source: str = "digits", algorithm: str = "ifca-mir") -> None:
    """Write a first configuration.

    Raises:
        InputError: ``path`` exists or cannot be written, or the source or algorithm is unknown.
    """
    text = starter(source, algorithm, path.name)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise InputError(f"{path}: exists already; choose a different file name") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def starter(source: str, algorithm: str, name: str = "run.toml") -> str:
    """Return the text of a first configuration file called ``name``."""
    require(
        source in SOURCES,
        f"'--data' is not a source with a first configuration (got '{source}'); {suggest(source, SOURCES)}",
    )
    data, network = SOURCES[source]
    kind = KINDS[Algorithm]
    names = [*kind.shipped, *kind.added]
    require(algorithm in names, f"'--algorithm' is unknown (got '{algorithm}'); {suggest(algorithm, names)}")
    return f"""\
# shoal data {name}      check how Shoal reads the data
# shoal run {name}       train and attack, and write a directory under runs/
# All keys: docs/configuration.md.
seed = 0

[data]
# 'shoal data' lists the sources on this machine.
source = "{source}"
{data}
[model]
name = "{network}"

[algorithm]
# One model for all clients: "fedavg"; per client: "local"; per group of similar clients: "ifca", "cfl" or "pacfl".
# docs/choosing.md compares these and thirty more.
name = "{algorithm}"
rounds = 15
{"".join(_lines(kind.named(algorithm, "--algorithm")))}
[local]
epochs = 5                 # passes over a client's examples per round
batch_size = 10
learning_rate = 0.1

[red_team]
every = 5                  # rounds between estimates of the models' exposure
"""


def _lines(algorithm: type) -> list[str]:
    """The algorithm's own keys with their defaults, as comments."""
    lines, texts = [], meanings(algorithm)
    for key in keys_of(algorithm):
        if key.inline and kind_of(key.hint) is None:
            lines += _lines(key.hint)
        elif key.default is not None and not is_dataclass(key.default):
            meaning = texts.get(key.field, "").split(". ")[0].split("; ")[0].rstrip(".")
            lines.append(f"{f'# {key.name} = {json.dumps(key.default)}':<26} # {meaning}\n")
    return lines
