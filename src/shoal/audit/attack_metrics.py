"""What a named attack finds about each model and each group, and which attack decides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np

from shoal.attacks import MembershipAttack, ShadowModelAttack
from shoal.audit.records import AttackedRecords
from shoal.metrics import MembershipMetrics


class AttackMetrics(Protocol):
    """What one attack finds; accuracies are NaN where it has no members or no non-members."""

    def of_cluster(self, k: int) -> MembershipMetrics:
        """About model k of those that clients use."""
        ...

    def of_group(self, g: int) -> MembershipMetrics:
        """About group g: its members against non-members of the same group."""
        ...


@dataclass(frozen=True, eq=False)
class AttackOnRecords:
    """An attack on the records of an audit; implements `AttackMetrics`.

    Args:
        attacked: the records, with what all attacks say of them.
        attack: which of the attacks.
        groups: names of the groups.
        otherwise: the same attack on all examples, for a model or group that no record asks about, such as a model that
            all its clients have left; None: it was not made.
    """

    attacked: AttackedRecords
    attack: str
    groups: Sequence[str]
    otherwise: AttackMetrics | None = None

    def of_cluster(self, k: int) -> MembershipMetrics:
        """See `AttackMetrics`."""
        found = self.attacked.measured_by(self.attack, self.attacked.records.scores.model == k)
        if np.isnan(found.accuracy) and self.otherwise is not None:
            return self.otherwise.of_cluster(k)
        return found

    def of_group(self, g: int) -> MembershipMetrics:
        """See `AttackMetrics`."""
        found = self.attacked.measured_by(self.attack, self.attacked.records.group == self.groups[g])
        if np.isnan(found.accuracy) and self.otherwise is not None:
            return self.otherwise.of_group(g)
        return found


def attacks_on_records(
    attacked: AttackedRecords, groups: Sequence[str], own: Mapping[str, AttackMetrics]
) -> Mapping[str, AttackMetrics]:
    """The attacks on the records by their keys in audit.json, then those of the run's ``own`` that are not among them.

    The headline comes first. An attack that was made both ways counts once, on the records, as the attacks beside it.
    """
    names = dict.fromkeys((attacked.headline, *attacked.found))
    asked = {name: AttackOnRecords(attacked, name, groups, own.get(name)) for name in names}
    return {**asked, **{name: attack for name, attack in own.items() if name not in asked}}


def strongest(found: Mapping[str, MembershipMetrics]) -> tuple[str, float]:
    """The attack that says how exposed records are, of what each attack ``found`` about the same records.

    The largest of many figures is above chance where nothing is leaked. So it is the first attack, which was chosen
    beforehand (of those that are measured), unless another is certain to be above 0.5 and above the first's figure: by
    the lower end of an interval that all of them keep at once (Bonferroni; it is as much wider as that of a normal
    distribution). Of several such attacks it is the one of highest lower end.

    Returns:
        The attack, and the lower end of its balanced accuracy that it is judged by: the first's own, or that of all.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import membership_metrics
        >>> from shoal.audit.attack_metrics import strongest
        >>> member = np.arange(400) < 200
        >>> right = [member, np.where(np.arange(400) % 20 == 0, ~member, member), np.arange(400) % 2 == 0]
        >>> perfect, good, none = (membership_metrics(1.0 * said, member, threshold=0.5) for said in right)
        >>> strongest({"a": none, "b": good, "c": perfect})[0], strongest({"b": good, "a": none})[0]
        ('c', 'b')
    """
    measured = {name: each for name, each in found.items() if not np.isnan(each.accuracy)}
    if not measured:
        return next(iter(found)), np.nan
    quantile = NormalDist().inv_cdf
    wider = quantile(1 - 0.025 / len(measured)) / quantile(0.975)
    first, *others = measured
    low = {name: found[name].accuracy - wider * (found[name].accuracy - found[name].low) for name in others}
    certain = [name for name in others if low[name] > max(0.5, found[first].accuracy)]
    best = max(certain, key=lambda name: low[name], default=first)
    return best, low.get(best, found[first].low)


def attack_key(attack: MembershipAttack) -> str:
    """The key in audit.json of an attack that a run is configured with.

    >>> from shoal.attacks import Gap
    >>> attack_key(ShadowModelAttack()), attack_key(Gap())
    ('posterior', 'gap')
    """
    if isinstance(attack, ShadowModelAttack):
        return "posterior"
    return str(getattr(attack, "name", type(attack).__name__))


def accuracy_key(attack: str) -> str:
    """The metric of summary.json that holds an attack's balanced accuracy.

    >>> accuracy_key("other-clusters")
    'mia_by_other_clusters'
    """
    return "mia_by_" + re.sub(r"\W", "_", attack)
