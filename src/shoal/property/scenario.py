"""The table ``[property_attack]`` of a configuration."""

from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from shoal.config.schema import Config
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Flag, Fraction, Inline, OpenFraction, PositiveFloat, settings
from shoal.data import Federation, LabelledDataset, Preferences
from shoal.data.partition import PartitionIndices
from shoal.engine import MaliciousClients
from shoal.metrics.summary import Summary
from shoal.models import Model
from shoal.property.active_attacker import active_property_attacker
from shoal.property.property_attack import PropertyAttack
from shoal.property.property_federation import (
    PropertyPartition,
    PropertySchedule,
    draw_property_partition,
    partitioned_federation,
)
from shoal.simulation.simulation import Simulation


@settings
class PropertyAttackSection:
    """Property inference by a client. The victim holds examples with the property of ``data.task``, and the attacker
    infers in which rounds the victim trains on examples with the property. See
    [property inference](#property-inference).

    Args:
        mode: the attacker's behaviour. A ``passive`` attacker trains like any client. An ``active`` attacker also
            trains the model on the property. A ``scaled`` attacker is active and multiplies its update by ``gamma``.
        alpha: the weight of the main loss in an active attacker's training; the weight of the property loss is
            ``1 - alpha``.
        gamma: the factor on a ``scaled`` attacker's update.
        period: the period in rounds: in every ``period``-th round, the victim trains only on examples with the
            property, and in all other rounds only on examples without the property.
        attacker_share: the attacker's fraction of the training examples with the property; the victim gets the
            remainder (authors' code: 0.3).
        victim_labels: the labels of the victim's examples without the property. ``natural`` labels are drawn without
            label skew (authors' code). ``skewed`` labels are drawn with label skew, like all other clients' labels.
            With ``skewed``, an attack may detect a change of the victim's labels instead of the property.
        train_head: whether an active attacker trains the network's additional outputs for the property. In Melis et
            al.'s code, these outputs keep their initial weights.
        attack: the settings of the attack by property inference.
    """

    mode: Literal["passive", "active", "scaled"] = "passive"
    alpha: Fraction = 0.9
    gamma: PositiveFloat = 5.0
    period: Annotated[int, Field(ge=2, strict=True)] = 5
    attacker_share: OpenFraction = 0.5
    victim_labels: Literal["natural", "skewed"] = "natural"
    train_head: Flag = True
    attack: Annotated[PropertyAttack, Inline()] = PropertyAttack()

    @staticmethod
    def from_simulation(simulation: Simulation) -> "PropertyAttackSection | None":
        """Return the section of a Python simulation with a passive attack, or ``None`` without such an attack."""
        attack, schedule = simulation.round_attack, simulation.federation.schedule
        if not isinstance(attack, PropertyAttack) or simulation.malicious_clients is not None:
            return None
        period = schedule.period if isinstance(schedule, PropertySchedule) else PropertyAttackSection.period
        return PropertyAttackSection(attack=attack, period=period)

    def check(self, config: Config) -> None:
        """Check that the configuration has no groups and no reused images, and that an attacked round has the property.

        Raises:
            InputError: the configuration cannot be combined with a property attack.
        """
        data, groups = config.data, config.data.groups.values()
        require(
            [(group.rotation, group.brightness, group.label_shift) for group in groups] == [(None, None, None)],
            "'data.groups' cannot be combined with 'property_attack'; remove 'data.groups'",
        )
        assert data.partition is not None
        require(
            not data.partition.reuse_images,
            "'data.reuse_images' must be false with 'property_attack'",
        )
        first = (self.attack.warm_up // self.period + 1) * self.period
        require(
            first <= config.algorithm.rounds,
            f"'algorithm.rounds' must be at least {first}, the first attacked round with the property "
            f"(got {config.algorithm.rounds})",
        )

    def draw(self, config: Config, dataset: LabelledDataset, stream: Stream) -> PartitionIndices:
        """Draw the partition by property."""
        return draw_property_partition(dataset, self._partition(config), stream)

    def federation(
        self,
        config: Config,
        dataset: LabelledDataset,
        indices: PartitionIndices,
        preferences: Preferences,
        stream: Stream,
    ) -> Federation:
        """Create the federation of a data set from a drawn partition."""
        return partitioned_federation(dataset, self._partition(config), indices, preferences, stream)

    def malicious_clients(self, model: Model, federation: Federation) -> MaliciousClients | None:
        """Return the active attacker, or ``None`` for a passive attack."""
        if self.mode == "passive":
            return None
        gamma = self.gamma if self.mode == "scaled" else 1.0
        return active_property_attacker(model, federation, alpha=self.alpha, gamma=gamma, train_head=self.train_head)

    def page(self, task: str | None, summary: Summary, updates: pd.DataFrame, clusters: int) -> Any:  # noqa: ANN401
        """Return the sections on the attack in a run's page, for a ``task`` such as "smiling/sunglasses"."""
        from shoal.property.property_page import property_sections  # noqa: PLC0415 - matplotlib takes a second

        return property_sections((_victim(self.period, task), _attacker(self)), summary, updates, clusters)

    def _partition(self, config: Config) -> PropertyPartition:
        partition = config.data.partition
        assert partition is not None
        least = config.local.batch(partition.examples_per_client)
        return PropertyPartition(partition, self.attacker_share, self.period, least, self.victim_labels)


def _victim(period: int, task: str | None) -> str:
    main, _, held = (task or "").partition("/")
    named = f"the property {held} (the models learn {main})" if held else "a property"
    return (
        f"One client, the victim, holds examples with {named}. In every round whose number is a multiple of {period}, "
        "the victim trains only on these examples, and in all other rounds only on its other examples. Another client "
        "infers the rounds with the property."
    )


def _attacker(section: PropertyAttackSection) -> str:
    attack = section.attack
    loss = f"{section.alpha:g} times the main task's loss plus {1 - section.alpha:g} times the property loss"
    trains = f"trains on {loss}, so that the models learn to separate examples with the property"
    does = {
        "passive": "trains like every client and only observes (a passive attack)",
        "active": f"{trains} (an active attack)",
        "scaled": f"{trains}, and multiplies its update by {section.gamma:g} (a scaled active attack)",
    }[section.mode]
    visible = "all models" if attack.visible_models == "all" else "only the model that it trains"
    examples = "its own examples" + " and the test examples" * (attack.auxiliary != "attacker")
    forest = "a random forest" if attack.forests == "single" else "a random forest per model"
    late = f" from round {attack.warm_up + 1} on" if attack.warm_up else ""
    return (
        f"That client, the attacker, {does}. The attacker sees {visible} before and after each round{late}; the "
        f"difference is an aggregated update. It simulates such updates with and without the property on {examples}. "
        f"Then {forest}, trained on the simulated updates, estimates the probability of the property in a real update."
    )
