"""What a report says of how a run was made, whether a configuration or a Python program made it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.audit.measurement import declared_metrics
from shoal.config.kinds import algorithm_title, name_of
from shoal.config.round_attack_section import RoundAttackSection
from shoal.config.schema import Config
from shoal.control import Coordinator
from shoal.core.formats import ACCURACY
from shoal.core.representation import one_line
from shoal.data import Group
from shoal.data.sources.catalog import kind_of
from shoal.metrics.metric_table import Metric


@dataclass(frozen=True)
class RunDescription:
    """How a run was made.

    Args:
        algorithm: its name in a file.
        dataset: the name of the data.
        seed: of everything random.
        groups: by name, also those without clients.
        attack: the membership attack's name in a file.
        estimator: of the red team.
        settings: the text of config.toml.
        property_attack: the settings of an attack on rounds; None where there is none, or they are not known.
        attack_table: the name of such an attack's table, and the columns that it always has; None: there is none.
        test_examples: of each group, where the summary does not say its numbers of non-members.
        metric: what the models are measured by, "accuracy" or the name of a model's own.
        kind: what the examples are, in the plural: images, texts, rows, or just examples.
        reference_federations: how many were asked for.
        coordinator: that steered the run, perhaps without its knobs; None: nobody did.
        data_name: of the user's own file or folder; "": none but ``dataset``.
        task: the label to learn and the property to infer, as ``MAIN/PROPERTY``; None: the data have only one of each.
        metrics: of the user's own measurements.
        examples: the hash of the federation, `shoal.data.fingerprint`; "": unknown.
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
    test_examples: int = 0
    metric: str = ACCURACY
    task: str | None = None
    kind: str = "images"
    reference_federations: int = 0
    coordinator: Coordinator | None = None
    examples: str = ""
    data_name: str = ""
    metrics: tuple[Metric, ...] = ()
    __repr__ = one_line

    @property
    def title(self) -> str:
        """Of a page: the algorithm, the data by their own name, and the seed."""
        return f"{algorithm_title(self.algorithm)} on {self.data_name or self.dataset}, seed {self.seed}"

    @staticmethod
    def of(config: Config) -> "RunDescription":
        """That of a run by configuration."""
        partition, section = config.data.partition, config.property_attack
        return RunDescription(
            algorithm=config.algorithm.name,
            dataset=config.data.source,
            seed=config.seed,
            groups=config.data.groups,
            attack=name_of(type(config.red_team.attack)),
            estimator=config.red_team.estimator,
            settings=config.toml(),
            property_attack=section,
            attack_table=None if section is None else (section.attack.name, section.attack.columns),
            # Dealt out evenly among all groups.
            test_examples=0 if partition is None else partition.test_examples // len(config.data.groups),
            task=config.data.task,
            kind=kind_of(config.data.source),
            data_name="" if partition is not None or config.data.path is None else Path(config.data.path).name,
            reference_federations=config.evaluation.reference_federations,
            metrics=declared_metrics(config.evaluation.own_metrics()),
            coordinator=None if config.coordinator is None else config.coordinator.coordinator(),
        )

    @property
    def groups_with_clients(self) -> list[str]:
        """The names of the groups that have clients."""
        return [name for name, group in self.groups.items() if group.share > 0]
