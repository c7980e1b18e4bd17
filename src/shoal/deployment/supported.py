"""Which algorithms run on several machines, and which part of each is whose."""

from typing import Literal, get_args

from shoal.algorithms import Algorithms
from shoal.core.errors import require
from shoal.engine import Algorithm, RemoteRounds, RunsRemotely, remote_rounds

Choice = Literal["client", "server", "shares"]
"""Who decides which model a client trains; see `RemoteRounds`."""


def choice_of(algorithm: Algorithm) -> Choice:
    """Who decides which model a client trains.

    Raises:
        InputError: the algorithm, or how it is set, needs more of clients in a round than one reply.
    """
    return _parts(algorithm).choice


def at_server(algorithm: Algorithm) -> Algorithm:
    """What the server runs: all but what clients keep to themselves, as Ditto's personal models."""
    return _parts(algorithm).server


def at_client(algorithm: Algorithm) -> Algorithm:
    """What a client runs: all but what the server alone does, as FedOpt's steps."""
    return _parts(algorithm).client


def _parts(algorithm: Algorithm) -> RemoteRounds:
    names = ", ".join(kind.title for kind in get_args(Algorithms) if hasattr(kind, "remote_rounds"))
    require(
        isinstance(algorithm, RunsRemotely),
        f"'algorithm.name': {type(algorithm).__name__} does not run on several machines, since it has no method "
        f"'remote_rounds'; those that do are {names}",
    )
    return remote_rounds(algorithm)
