"""What there is: images and texts, where they come from, how they are shifted and dealt out to clients.

May import `core`. To add a source: a file that returns `Images` or `Texts`, and its name in `catalog.py`.
"""

from shoal.data.catalog import availability, load_images
from shoal.data.federation import Examples, Federation, Preferences
from shoal.data.holding import Holding
from shoal.data.images import Images, Labelled, Texts
from shoal.data.preferences import draw_preferences
from shoal.data.property_split import PropertySplit, deal_property, split_property
from shoal.data.shards import Shards
from shoal.data.shifts import Group
from shoal.data.split import Split, split_images

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
