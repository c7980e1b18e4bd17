"""Runs in plain words: what a figure means to somebody who has not read the paper."""

from collections.abc import Mapping

NAMES = {"fedavg": "FedAvg", "ifca": "IFCA", "ifca-mir": "IFCA-MIR"}
"""Algorithms as papers write them."""

NOTICEABLE = 0.02
"""Differences of accuracy and exposure below this are called none: about what another seed changes."""

WORDS = ("algorithm", "dataset")
"""Keys of a summary that are not numbers."""


Figures = Mapping[str, float | int | str]


def groups_of(figures: Figures) -> list[str]:
    """The groups a summary speaks of, in the order of the configuration."""
    names = [key.removeprefix("accuracy.") for key in figures if key.startswith("accuracy.")]
    return [name for name in names if name != "overall"]


def clients_of(figures: Figures) -> int:
    """The number of clients of a summary's run."""
    return sum(int(value) for key, value in figures.items() if key.startswith("clusters.") and key.endswith(".clients"))


def verdict(figures: Figures) -> str:
    """One run in a sentence or two."""
    groups, clients = groups_of(figures), clients_of(figures)
    name = str(figures["algorithm"])
    right = f"{NAMES.get(name, name)} is right on {_percent(figures['accuracy.overall'])} of held-out images"
    exposed = {group: float(figures[f"mia.{group}"]) for group in groups if f"mia.{group}" in figures}
    if len(groups) > 1:
        each = ", ".join(f"{_percent(figures[f'accuracy.{group}'])} for {group}" for group in groups)
        right += f" ({each})"
    told = "; ".join(
        f"{value:.3f} of {group}" if len(groups) > 1 else f"{value:.3f}" for group, value in exposed.items()
    )
    worst = max(exposed, key=lambda group: exposed[group], default=None)
    if worst is None:
        leak = "No attack was measured."
    elif exposed[worst] < 0.5 + NOTICEABLE:
        leak = f"The attack tells members from others no better than a coin ({told})."
    else:
        leak = f"An attacker tells members from others with balanced accuracy {told} (a coin: 0.500)."
    by_loss = {group: float(figures.get(f"loss_threshold.{group}", 0.0)) for group in exposed}
    stronger = [group for group in exposed if by_loss[group] >= exposed[group] + NOTICEABLE]
    if stronger:
        leak += f" A threshold on the loss does better: {', '.join(f'{by_loss[g]:.3f} of {g}' for g in stronger)}."
    leak += _property(figures)
    broken = int(figures["violations.total"])
    count = "No client's" if broken == 0 else f"{broken} of {clients} clients'"
    return f"{right}. {leak} {count} {'limits are' if broken > 1 else 'limit is'} exceeded."


def _property(figures: Figures) -> str:
    """What a property attack found, as a sentence more; nothing where there is no figure of one."""
    if "property.auc" not in figures:
        return ""
    found = float(figures["property.auc"])
    told = "a coin: 0.500"
    if "property.auc_control" in figures:
        told += f"; learned from shuffled labels: {float(figures['property.auc_control']):.3f}"
    if "property.auc_rounds" in figures:
        told += f"; over rounds: {float(figures['property.auc_rounds']):.3f}"
    if found < 0.5 + NOTICEABLE:
        return f" The property attack tells updates with the property no better than a coin (AUC {found:.3f}; {told})."
    return f" The property attack tells updates with the property from others with an AUC of {found:.3f} ({told})."


def _percent(value: float | int | str) -> str:
    return f"{100 * float(value):.1f} %"
