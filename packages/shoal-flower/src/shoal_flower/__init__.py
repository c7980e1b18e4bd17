"""Shoal on several machines with Flower: the steps of a round as messages between a server and its clients.

Clients and server call `client_round`, `server_plan` and `server_round` of `shoal.engine`. Only `wire_codec.py`,
`client_app.py` and the server's files import Flower.
"""

from shoal_flower.app_trace import AppRecorder, app_trace

__all__ = ["AppRecorder", "app_trace"]
