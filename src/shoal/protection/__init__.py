"""The search for a protection: candidate settings are compared on some seeds, and the best are tested on other seeds.

May import `sweeps` and the packages below it.
"""

from shoal.protection.judgement import Demand, Protection, sentences
from shoal.protection.ladder import Ladder, Rung
from shoal.protection.search import protect

__all__ = ["Demand", "Ladder", "Protection", "Rung", "protect", "sentences"]
