"""The same algorithms on real machines, by Flower: the four verbs of a round as messages between processes.

Needs the extra `shoal[flower]`. Nothing here learns: clients and server call `shoal.engine.rounds.remote`. Flower
itself is imported by `flower_records.py`, `client_app.py`, `server_app.py`, `exchange.py` and `task_worker.py` alone.
"""
