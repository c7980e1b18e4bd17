"""Runs in plain words: what a figure means to somebody who has not read the paper."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from shoal.core.checks import InputError, require

NAMES = {"fedavg": "FedAvg", "ifca": "IFCA", "ifca-mir": "IFCA-MIR"}
"""Algorithms as papers write them."""

NOTICEABLE = 0.02
"""Differences of accuracy and exposure below this are called none: about what another seed changes."""

WORDS = ("algorithm", "dataset")
"""Keys of a summary that are not numbers."""

NEEDED = (*WORDS, "seed", "rounds", "accuracy.overall", "violations.total", "migrated", "seconds.total")
"""Keys that every summary has."""

Figures = Mapping[str, float | int | str]


def read_run(out: Path) -> Figures:
    """The summary of a finished run.

    Raises:
        InputError: ``out`` is not the directory of a finished run.
    """
    path = out / "summary.json"
    require(path.exists(), f"{out}: is not a finished run (no summary.json); finish it with shoal run --resume")
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    require(isinstance(figures, dict), f"{path}: is damaged: it must hold figures under flat keys")
    missing = [key for key in NEEDED if key not in figures]
    require(not missing, f"{path}: is damaged: {', '.join(missing)} missing")
    whole = all(
        key in WORDS or (isinstance(value, int | float) and not isinstance(value, bool))
        for key, value in figures.items()
    )
    require(whole and figures["algorithm"] in NAMES, f"{path}: is damaged: it must hold numbers under flat keys")
    return figures


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
    name = NAMES[str(figures["algorithm"])]
    right = f"{name} is right on {_percent(figures['accuracy.overall'])} of held-out images"
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


ROWS = (
    ("accuracy.overall", "accuracy, all clients"),
    ("accuracy.{}", "accuracy, {}"),
    ("train_accuracy.{}", "train accuracy, {}"),
    ("mia.{}", "MIA accuracy, {}"),
    ("mia_population.{}", "MIA, population non-members, {}"),
    ("mia_auc.{}", "MIA AUC, {}"),
    ("gap.{}", "gap attack, {}"),
    ("violations.total", "violations, all clients"),
    ("violations.{}", "violations, {}"),
    ("migrated", "migrated clients"),
    ("clusters.*.clients", "clients by cluster"),
    ("clusters.*.mia", "MIA accuracy by cluster"),
    ("adjusted_rand_index", "recovered grouping (ARI)"),
    ("seconds.total", "seconds"),
)
"""What a comparison shows: keys of the summary, for each group or cluster, and how they are called."""


def compare(runs: Sequence[Path]) -> tuple[pd.DataFrame, str]:
    """Finished runs side by side: a row a figure, a column a run; and what differs, in words.

    Raises:
        InputError: fewer than two runs, one that is not finished, or runs of other data.
    """
    require(len(runs) >= 2, f"a comparison takes at least two runs; got {len(runs)}")
    figures = [read_run(path) for path in runs]
    groups = groups_of(figures[0])
    for path, each in zip(runs[1:], figures[1:], strict=True):
        same = groups_of(each) == groups and each["dataset"] == figures[0]["dataset"]
        require(same, f"{path}: is a run on other data or groups than {runs[0]}; compare runs of the same federation")
    clusters = max(int(key.split(".")[1]) for each in figures for key in each if key.startswith("clusters.")) + 1
    table = {}
    for key, label in ROWS:
        if "*" in key:
            cells = [[each.get(key.replace("*", str(k))) for k in range(clusters)] for each in figures]
            table[label] = [" / ".join("-" if value is None else _cell(value) for value in cell) for cell in cells]
            continue
        for group in groups if "{}" in key else [""]:
            found = [each.get(key.format(group)) for each in figures]
            table[label.format(group)] = ["-" if value is None else _cell(value) for value in found]
    titles = [NAMES[str(each["algorithm"])] for each in figures]
    if len(set(titles)) < len(titles):
        titles = [path.name for path in runs]
    frame = pd.DataFrame.from_dict(table, orient="index", columns=titles)
    return frame, " ".join(
        _difference(figures[0], each, titles[0], title) for each, title in zip(figures[1:], titles[1:], strict=True)
    )


def _difference(first: Figures, other: Figures, first_title: str, title: str) -> str:
    """What the second run does to accuracy, exposure and limits, whatever it does."""
    parts = [_moved("accuracy", first, other, "accuracy.overall", higher="gains", lower="loses")]
    parts += [
        _moved(f"the exposure of {group}", first, other, f"mia.{group}", higher="raises", lower="lowers")
        for group in groups_of(first)
    ]
    before, after = int(first["violations.total"]), int(other["violations.total"])
    if after == before:
        parts.append(f"leaves the number of exceeded limits at {after}")
    else:
        parts.append(
            f"{'lowers' if after < before else 'raises'} the number of exceeded limits from {before} to {after}"
        )
    moved = int(other["migrated"])
    parts.append(
        f"has {moved} of {clients_of(other)} clients in a cluster where another group is in the majority "
        f"(against {int(first['migrated'])})"
    )
    drained = [key.split(".")[1] for key, value in other.items() if key.endswith(".clients") and value == 0]
    if drained:
        parts.append(f"leaves cluster {', '.join(drained)} empty")
    return f"Against {first_title}, {title} {', '.join(parts[:-1])} and {parts[-1]}."


def _moved(what: str, first: Figures, other: Figures, key: str, *, higher: str, lower: str) -> str:
    before, after = float(first[key]), float(other[key])
    if abs(after - before) < NOTICEABLE:
        return f"leaves {what} about where it was ({before:.3f}, now {after:.3f})"
    return f"{higher if after > before else lower} {what} ({before:.3f}, now {after:.3f})"


def _percent(value: float | int | str) -> str:
    return f"{100 * float(value):.1f} %"


def _cell(value: float | int | str) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
