"""The parts of a run's configuration that its report speaks of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PropertyAttackInfo:
    """A property attack as the report describes it; the fields are those of the configuration.

    Args:
        task: the main task and the property, as "main/property"; None where the data have only one of each.
        mode: what the attacker does in training.
        alpha: weight of the main task's loss where the attacker trains for the property.
        gamma: factor of the attacker's update where it is scaled.
        period: the victim trains on the property in every so many rounds.
        visible_models: models that the attacker sees in a round: "all", or its "own".
        auxiliary: examples that it simulates updates on.
        forests: one classifier for all models, or one for each.
        warm_up: rounds before it begins.
    """

    task: str | None
    mode: Literal["passive", "active", "scaled"]
    alpha: float
    gamma: float
    period: int
    visible_models: Literal["all", "own"]
    auxiliary: Literal["attacker", "attacker+test"]
    forests: Literal["single", "per-cluster"]
    warm_up: int


@dataclass(frozen=True)
class RunInfo:
    """What a report says of a run beside its results.

    Args:
        title: of the page.
        groups: what distinguishes each group, in words, by name and in order; of those without clients, too.
        attack: the name of the configured membership inference attack.
        estimator: the name of the red team's estimator of risk.
        config: the whole configuration, as TOML.
        property_attack: None without one.
    """

    title: str
    groups: Mapping[str, str]
    attack: str
    estimator: str
    config: str
    property_attack: PropertyAttackInfo | None = None
