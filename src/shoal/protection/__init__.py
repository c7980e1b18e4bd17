"""The search for a protection that pays: a ladder of settings, audited on some seeds and judged on others.

May import `sweeps` and below.
"""

from shoal.protection.ladder import Rung, ladder
from shoal.protection.search import Demand, Protection, protect, sentences

__all__ = ["Demand", "Protection", "Rung", "ladder", "protect", "sentences"]
