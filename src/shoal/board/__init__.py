"""A board of defences: each on the same federations, with utility and exposure side by side.

May import `sweeps` and below.
"""

from shoal.board.board import Board, Defence, measure, read_board, read_defence
from shoal.board.places import places, standings

__all__ = ["Board", "Defence", "measure", "places", "read_board", "read_defence", "standings"]
