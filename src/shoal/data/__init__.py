"""Data sets, their sources, and their partition across clients.

This package may import `core`. To add a source, write a file in `sources` that returns an `ImageDataset`,
`TextDataset` or `ClientDataset`, and add the name to `sources/catalog.py`.
"""

from shoal.data.datasets import ImageDataset, LabelledDataset, Standardizer, TableDataset, TextDataset
from shoal.data.federation import Federation
from shoal.data.partition import Partition, partition_dataset
from shoal.data.preferences import Preferences, View, draw_preferences
from shoal.data.presence import Event, Presence
from shoal.data.shards import GroupedExamples, Shards
from shoal.data.shifts import Group
from shoal.data.sources.catalog import availability, load_dataset
from shoal.data.swap_pairs import Canaries, MislabelledCanaries
from shoal.data.user.arrays import Columns, Examples
from shoal.data.user.client_dataset import ClientDataset, ClientSplit, SourceData, federation_of_clients
from shoal.data.user.from_tensors import ClientArrays
from shoal.data.user.own_files import PictureFormat, load_folder, load_table

__all__ = [
    "Canaries", "ClientArrays", "ClientDataset", "ClientSplit", "Columns", "Event", "Examples", "Federation", "Group",
    "GroupedExamples", "ImageDataset", "LabelledDataset", "MislabelledCanaries", "Partition", "PictureFormat",
    "Preferences", "Presence", "Shards", "SourceData", "Standardizer", "TableDataset", "TextDataset", "View",
    "availability", "draw_preferences", "federation_of_clients", "load_dataset", "load_folder", "load_table",
    "partition_dataset",
]  # fmt: skip
