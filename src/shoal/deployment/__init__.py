"""The same algorithms on several machines, by Flower: the steps of a round as messages between processes.

Needs the extra `shoal[flower]`. Nothing here learns: clients and server call `client_round`, `server_plan` and
`server_round` of `shoal.engine`, on what `shoal.config.build` makes of the run's file. The server's directory is opened
and saved by `shoal.runs.directory` and `shoal.runs.checkpoint`.

Flower itself is imported by `flower_records.py`, `client_app.py`, `task_worker.py` and the server's files alone.
"""
