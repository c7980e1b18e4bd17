"""A board of defences: each on the same federations, with utility and exposure side by side.

May import `sweeps` and below.
"""
