"""Data of a configuration whose clients have their examples already."""

from dataclasses import replace

from torch import Tensor

from shoal.algorithms.wrapper import with_bases
from shoal.audit import NEED_HOLDOUT
from shoal.config.kinds import name_of, own_source
from shoal.config.schema import Config, DataSection
from shoal.config.settings_tables import in_table, table_of
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import spell_value
from shoal.data import ClientDataset, ClientSplit, Federation, Group, LabelledDataset, PictureFormat, SourceData
from shoal.data.partition import PartitionIndices
from shoal.data.user.own_files import Reading


def reading_of(section: DataSection) -> Reading | None:
    """The format of the files or the table of [data]; None: its examples are partitioned across clients."""
    if section.partition is not None or own_source(section.source):
        return section.columns
    return section.columns or section.pictures or PictureFormat()


def require_partition(section: DataSection, data: SourceData) -> None:
    """Raise `InputError` unless [data] says how many examples go where just if ``data`` is one set."""
    have = f"the clients of '{section.source}' have their examples already"
    if isinstance(data, LabelledDataset):
        require(
            section.partition is not None,
            f"'{section.source}' is one set, which is partitioned across clients; set 'data.clients', "
            "'data.examples_per_client' and 'data.test_examples'",
        )
        return
    require(section.partition is None, f"{have}; leave 'data.clients' and the other numbers of examples out")
    require(
        section.split is None or isinstance(data, ClientDataset),
        f"{have}, and it says what is held out; leave 'data.test_fraction' and the other fractions out",
    )


def draw_split(config: Config, data: ClientDataset) -> PartitionIndices:
    """Draw which examples of each client are for what; raises as `ClientSplit.draw`."""
    require(
        config.property_attack is None,
        f"'property_attack' needs a source with a 'task'; '{config.data.source}' has none",
    )
    with in_table("data"):
        return (config.data.split or ClientSplit()).draw(data, Stream(config.seed, ("data",)))


def decided_data(section: DataSection, data: ClientDataset | Federation) -> DataSection:
    """[data] with what the data decide: groups and their shares, the form of pictures, the columns that are inputs.

    Raises:
        InputError: groups that are not those of the files.
    """
    shares, name = data.shares, getattr(data, "name", f"'{section.source}'")
    groups = {name: Group(name, share) for name, share in shares.items()}
    listed = ", ".join(f"'{name}' ({share:g} of the clients)" for name, share in shares.items())
    require(
        section.groups in ({"all": Group("all", 1.0)}, groups),  # the default, or as a written configuration has them
        f"[data]: the groups of {name} are {listed}, and are neither chosen nor shifted by 'groups'; leave it out",
    )
    if isinstance(data, Federation):
        return replace(section, groups=groups)
    split = section.split or ClientSplit()
    if section.columns is None and own_source(section.source):
        return replace(section, groups=groups, split=split)
    if section.columns is not None:
        return replace(section, groups=groups, split=split, columns=replace(section.columns, inputs=data.inputs))
    assert isinstance(data.x, Tensor)
    _, channels, height, width = data.x.shape
    form = PictureFormat((height, width), 1 if channels == 1 else 3)
    return replace(section, groups=groups, split=split, pictures=form)


def check_sizes(config: Config, data: SourceData, indices: PartitionIndices | None) -> None:
    """Raise `InputError` where the red team or the algorithm needs more than there is."""
    section, team = config.data, config.red_team
    if isinstance(data, Federation):
        clients, shadow, holdout = len(data), len(data.shadow), len(data.holdout.indices)
        most = f"{clients}, the number of clients of '{section.source}'"
        needs = f"'{section.source}' must give the server at least 2 examples; it gives {shadow}"
        held_out = f"hold-out examples of '{section.source}'"
    elif isinstance(data, ClientDataset):
        assert indices is not None
        clients, shadow, holdout = len(data.client_names), len(indices.shadow), len(indices.holdout.indices)
        most, share = (
            f"{clients}, the number of clients of {data.name}",
            (section.split or ClientSplit()).shadow_fraction,
        )
        needs = f"'data.shadow_fraction' must give the server at least 2 examples; {spell_value(share)} gives {shadow}"
        held_out = "'data.holdout_fraction' to be above 0"
    else:
        partition = section.partition
        assert partition is not None
        clients, shadow, holdout = partition.clients, partition.shadow_examples, partition.holdout_examples
        most, needs = f"'data.clients' = {clients}", f"'data.shadow_examples' must be at least 2; got {shadow}"
        held_out = "'data.holdout_examples' to be at least 1"
    shadows = team.attack.needs != "nothing" or (team.estimator == "shadow" and team.every > 0)
    require(
        shadow >= 2 or not shadows,
        f'\'red_team.attack\' = "{name_of(type(team.attack))}" with the "{team.estimator}" estimator trains shadow '
        f"models, so {needs}",
    )
    require(
        team.estimator not in NEED_HOLDOUT or holdout > 0 or team.every == 0,
        f"'red_team.estimator' = \"{team.estimator}\" needs {held_out}; got 0",
    )
    clusters = max(table_of(base).get("clusters", 1) for base in with_bases(config.algorithm.value))
    require(clusters <= clients, f"'algorithm.clusters' must be at most {most}; got {clusters}")
