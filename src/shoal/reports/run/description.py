"""Descriptions of a run and of its recorded updates."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.audit.measurement import declared_metrics
from shoal.config.kinds import RoundAttackSection, name_of, title_of
from shoal.config.schema import Config, parse_config
from shoal.control import LimitController
from shoal.core.formats import ACCURACY, one_line
from shoal.data import Group
from shoal.data.sources.catalog import example_kind
from shoal.metrics.metric_table import Metric
from shoal.models import metric_name, squared_error
from shoal.models.model import NegativeLoss


def metric_of_task(task: str | None) -> str:
    """Return the name of the metric that a configured run reports as accuracy."""
    return metric_name(NegativeLoss(squared_error)) if task == "regression" else ACCURACY


def title_with_base(algorithm: Any) -> str:  # noqa: ANN401 - any algorithm
    """Return an algorithm's title; a wrapper's title follows the title of its base, as in "IFCA, one-shot start"."""
    base, own = getattr(algorithm, "base", None), title_of(algorithm)
    if base is None:
        return own
    return f"{title_with_base(base)}, {own if own[:2].isupper() else own[:1].lower() + own[1:]}"


@dataclass(frozen=True)
class RunDescription:
    """The description of a run, for its page.

    Args:
        groups: the groups by name, including groups without clients.
        attack: the membership attack's name, as in a configuration.
        property_attack: the settings of a property attack, or ``None`` if the run has no property attack or the
            settings are unknown.
        attack_table: the name and the required columns of the property attack's table, or ``None`` without a property
            attack.
        data_name: the name of the user's file or folder, or an empty string if the run used ``dataset``.
        task: the label to learn and the property to infer, as ``MAIN/PROPERTY``, or ``None`` if the data have one
            task.
        examples: the hash of the federation by `shoal.data.fingerprint`, or an empty string if unknown.
    """

    algorithm: str
    dataset: str
    seed: int
    groups: Mapping[str, Group]
    attack: str
    estimator: str
    settings: str
    property_attack: RoundAttackSection | None = None
    attack_table: tuple[str, Sequence[str]] | None = None
    metric: str = ACCURACY
    task: str | None = None
    kind: str = "images"
    coordinator: LimitController | None = None
    examples: str = ""
    data_name: str = ""
    metrics: tuple[Metric, ...] = ()
    algorithm_title: str = ""
    __repr__ = one_line

    @property
    def title(self) -> str:
        """The title of the page, with the algorithm, the data and the seed."""
        comma = "," * (", " in self.algorithm_title)
        return f"{self.algorithm_title}{comma} on {self.data_name or self.dataset}, seed {self.seed}"

    def with_algorithm(self, algorithm: Any) -> "RunDescription":  # noqa: ANN401 - any algorithm
        """Return a copy of the description with another algorithm."""
        config = parse_config(tomllib.loads(self.settings), "config.toml")
        section = replace(config.algorithm, value=algorithm)
        changed = RunDescription.of(replace(config, algorithm=section))
        return replace(changed, examples=self.examples)

    @staticmethod
    def of(config: Config) -> "RunDescription":
        """Describe a configured run."""
        partition, section = config.data.partition, config.property_attack
        return RunDescription(
            algorithm=config.algorithm.name,
            algorithm_title=title_with_base(config.algorithm.value),
            dataset=config.data.source,
            seed=config.seed,
            groups=config.data.groups,
            attack=name_of(type(config.red_team.attack)),
            estimator=config.red_team.estimator,
            settings=config.toml(),
            property_attack=section,
            attack_table=None if section is None else (section.attack.name, section.attack.columns),
            task=config.data.task,
            kind=example_kind(config.data.source),
            data_name="" if partition is not None or config.data.path is None else Path(config.data.path).name,
            metrics=declared_metrics(config.evaluation.own_metrics()),
            metric=metric_of_task(config.data.task),
            coordinator=None if config.coordinator is None else config.coordinator.coordinator(),
        )

    @property
    def groups_with_clients(self) -> list[str]:
        """The names of the groups that have clients."""
        return [name for name, group in self.groups.items() if group.share > 0]


@dataclass(frozen=True)
class RecordedUpdates:
    """The clients' recorded updates in a run directory.

    Args:
        size: the total size of the recorded files, in bytes.
    """

    rounds: tuple[int, ...]
    size: int
    __repr__ = one_line

    @property
    def sentence(self) -> str:
        """A sentence about the recorded rounds and their size.

        >>> RecordedUpdates((5, 10), 1_250_000).sentence
        'The updates of 2 rounds from 5 to 10 are recorded: 1.2 MB in the folder updates.'
        """
        first, last, count = self.rounds[0], self.rounds[-1], len(self.rounds)
        rounds = f"{count:,} rounds from {first} to {last}" if count > 1 else f"round {last}"
        size = f"{self.size / 1e6:,.1f} MB" if self.size >= 1e5 else f"{self.size / 1e3:,.1f} kB"
        return f"The updates of {rounds} are recorded: {size} in the folder updates."
