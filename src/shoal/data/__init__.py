"""What there is: images and texts, where they come from, how they are shifted and dealt out to clients.

May import `core`. To add a source: a file that returns `Images` or `Texts`, and its name in `catalog.py`.
"""

from shoal.data.datasets import Images, Labelled, Texts
from shoal.data.federation import Examples, Federation, Preferences
from shoal.data.partition import Split, split_images
from shoal.data.preferences import draw_preferences
from shoal.data.property_partition import PropertySplit, deal_property, split_property
from shoal.data.property_schedule import Holding
from shoal.data.shards import Shards
from shoal.data.shifts import Group
from shoal.data.sources.catalog import availability, load_images

__all__ = [
    "Examples",
    "Federation",
    "Group",
    "Holding",
    "Images",
    "Labelled",
    "Preferences",
    "PropertySplit",
    "Shards",
    "Split",
    "Texts",
    "availability",
    "deal_property",
    "draw_preferences",
    "load_images",
    "split_images",
    "split_property",
]
