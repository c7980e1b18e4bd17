"""Sources of a configuration whose clients have their examples already: ``folder`` and ``table``."""

from dataclasses import replace
from pathlib import Path

import torch

from shoal.audit import NEED_HOLDOUT
from shoal.config.schema import Config, DataSection
from shoal.config.settings_tables import in_table
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.core.settings import spelled
from shoal.data import ClientDataset, ClientSplit, Columns, Group, PictureFormat, load_folder, load_table
from shoal.data.partition import PartitionIndices

Reading = PictureFormat | Columns
"""How the files of such a source are read."""


def reading_of(section: DataSection) -> Reading | None:
    """How the files of [data] are read; None: its examples are dealt out to clients."""
    if section.partition is not None:
        return None
    return section.columns or section.pictures or PictureFormat()


def load_client_data(source: str, path: Path | None, task: str | None, reading: Reading) -> ClientDataset:
    """The examples of the source ``folder`` or ``table``.

    Raises:
        InputError: no path, a task, or files that cannot be used.
    """
    if path is None:
        what = "folder of pictures, or of a CSV file that names them" if source == "folder" else "CSV or Parquet file"
        raise InputError(f"data source '{source}' needs 'path', that of a {what}")
    require(task is None, f"data source '{source}' has no tasks; got the task '{task}'")
    require(path.exists(), f"data source '{source}' has the path '{path}', which does not exist")
    if isinstance(reading, PictureFormat):
        return load_folder(path, reading)
    require(path.is_file(), f"data source 'table' has the path '{path}', which is a folder; a file is needed")
    return load_table(path, reading)


def draw_split(config: Config, data: ClientDataset) -> PartitionIndices:
    """Draw which examples of each client are for what; raises as `ClientSplit.draw`."""
    require(
        config.property_attack is None,
        f"'property_attack' needs a source with a 'task'; '{config.data.source}' has none",
    )
    with in_table("data"):
        return (config.data.split or ClientSplit()).draw(data, Stream(config.seed, ("data",)))


def decided_data(section: DataSection, data: ClientDataset) -> DataSection:
    """[data] with what the files decide: groups and their shares, the form of pictures, the columns that are inputs.

    Raises:
        InputError: groups that are not those of the files.
    """
    shares, given = data.shares, section.groups
    found = {name: Group(name, share) for name, share in shares.items()}
    # As a written configuration has them; "all" is what stands there by default.
    written = given == {"all": Group("all", 1.0)} or given == found
    listed = ", ".join(f"'{name}' ({share:g} of the clients)" for name, share in shares.items())
    require(
        written,
        f"[data]: the groups of {data.name} are {listed}, and are neither chosen nor shifted by 'groups'; leave it out",
    )
    split = section.split or ClientSplit()
    if section.columns is not None:
        return replace(section, groups=found, split=split, columns=replace(section.columns, inputs=data.inputs))
    _, channels, height, width = data.x.shape
    form = PictureFormat((height, width), 1 if channels == 1 else 3)
    return replace(section, groups=found, split=split, pictures=form)


def check_sizes(
    config: Config, data: ClientDataset, indices: PartitionIndices, clusters: int, *, shadows: bool
) -> None:
    """Raise `InputError` where the red team or the algorithm needs more than the clients have.

    Args:
        config: what to run.
        data: the examples.
        indices: which of them are for what.
        clusters: the algorithm's.
        shadows: whether shadow models are trained.
    """
    split, team, clients = config.data.split or ClientSplit(), config.red_team, len(data.client_names)
    require(
        len(indices.shadow) >= 2 or not shadows,
        f"the red team trains shadow models, so 'data.shadow_fraction' must give the server at least 2 examples; "
        f"{spelled(split.shadow_fraction)} gives {len(indices.shadow)}",
    )
    require(
        team.estimator not in NEED_HOLDOUT or len(torch.cat(indices.holdout)) > 0 or team.every == 0,
        f"'red_team.estimator' = \"{team.estimator}\" needs 'data.holdout_fraction' to be above 0; got 0",
    )
    require(
        clusters <= clients,
        f"'algorithm.clusters' must be at most {clients}, the number of clients of {data.name}; got {clusters}",
    )
