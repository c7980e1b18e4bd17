"""The report of a run, made from its files."""

from pathlib import Path

from shoal.config.kinds import algorithm_title, name_of
from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_text
from shoal.data import Group
from shoal.reports.run.info import PropertyAttackInfo, RunInfo
from shoal.runs.files import read_samples, read_summary, read_table
from shoal.simulation.property_metrics import PROPERTY_COLUMNS
from shoal.simulation.result import CLIENT_COLUMNS


def report_of(out: Path) -> Path:
    """Write report.html of the finished run in ``out``, whole or not at all; returns the path of the page.

    Raises:
        InputError: ``out`` is not the directory of a finished run, or one of its files is missing or damaged.
    """
    # Here, so that a run without a report does not load matplotlib and jinja2.
    from shoal.reports.run.page import ROC_COLUMNS, ROUND_COLUMNS, RunFrames, run_page  # noqa: PLC0415

    summary = read_summary(out)
    config = read_config(out / "config.toml")
    clients_by_group = [f"clients.{name}" for name in config.data.groups_with_clients]
    updates = None
    if config.property_attack is not None:
        updates = read_table(out / "property.csv", PROPERTY_COLUMNS, empty=True)
    frames = RunFrames(
        rounds=read_table(out / "rounds.csv", (*ROUND_COLUMNS, *clients_by_group)),
        clients=read_table(out / "clients.csv", CLIENT_COLUMNS),
        roc=read_table(out / "roc.csv", ROC_COLUMNS, empty=True),
        updates=updates,
    )
    page = run_page(run_info(config), summary, frames, read_samples(out / "samples.safetensors"))
    path = out / "report.html"
    write_text(path, page)
    return path


def run_info(config: Config) -> RunInfo:
    """What the report says of a run's configuration."""
    attack = config.property_attack
    info = None
    if attack is not None:
        info = PropertyAttackInfo(
            task=config.data.task,
            mode=attack.mode,
            alpha=attack.alpha,
            gamma=attack.gamma,
            period=attack.period,
            visible_models=attack.attack.visible_models,
            auxiliary=attack.attack.auxiliary,
            forests=attack.attack.forests,
            warm_up=attack.attack.warm_up,
        )
    return RunInfo(
        title=f"{algorithm_title(config.algorithm.name)} on {config.data.source}, seed {config.seed}",
        groups={name: _description(group) for name, group in config.data.groups.items()},
        attack=name_of(type(config.red_team.attack)),
        estimator=config.red_team.estimator,
        config=config.toml(),
        property_attack=info,
    )


def _description(group: Group) -> str:
    """The share and the shift of a group, in words."""
    parts = [f"{100 * group.share:g} % of the clients" if group.share > 0 else "held-out images only, of no client"]
    if group.rotation is not None:
        parts.append(f"rotated by {group.rotation[0]:g} to {group.rotation[1]:g} degrees")
    if group.brightness is not None:
        parts.append(f"brightness times {group.brightness[0]:g} to {group.brightness[1]:g}")
    return "; ".join(parts)
