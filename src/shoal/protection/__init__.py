"""The search for a protection that pays: a ladder of settings, audited on some seeds and judged on others.

May import `sweeps` and below.
"""

from shoal.protection.judgement import Demand, Protection, sentences
from shoal.protection.ladder import Ladder, Rung
from shoal.protection.search import protect

__all__ = ["Demand", "Ladder", "Protection", "Rung", "protect", "sentences"]
