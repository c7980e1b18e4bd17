"""Shoal on several machines, by Flower: the steps of a round as messages between processes.

Nothing here learns: clients and server call `client_round`, `server_plan` and `server_round` of `shoal.engine`, on what
`shoal.config.build` makes of the run's file. The server's directory is opened and saved by `shoal.runs.directory` and
`shoal.runs.checkpoint`.

Flower itself is imported by `wire_codec.py`, `client_app.py` and the server's files alone.
"""

from shoal_flower.app_trace import AppRecorder, app_trace

__all__ = ["AppRecorder", "app_trace"]
