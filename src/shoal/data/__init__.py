"""What there is: images and texts, where they come from, how they are shifted and dealt out to clients.

May import `core`. To add a source: a file that returns `Images` or `Texts`, and its name in `catalog.py`.
"""

from shoal.data.catalog import availability, load_images
from shoal.data.federation import Examples, Federation, Preferences, Shards
from shoal.data.images import Images, Labelled, Texts
from shoal.data.preferences import draw_preferences
from shoal.data.shifts import Group
from shoal.data.split import Split, split_images

__all__ = [
    "Examples",
    "Federation",
    "Group",
    "Images",
    "Labelled",
    "Preferences",
    "Shards",
    "Split",
    "Texts",
    "availability",
    "draw_preferences",
    "load_images",
    "split_images",
]
