"""Which algorithms run on real machines, and which part of each is whose."""

from dataclasses import replace
from typing import Literal

from shoal.algorithms.clusters.cfl import CFL
from shoal.algorithms.clusters.fedsoft import FedSoft
from shoal.algorithms.clusters.hypcluster import HypCluster
from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.one_model.fedopt import FedOpt
from shoal.algorithms.personal.ditto import Ditto
from shoal.algorithms.wrapper import with_bases
from shoal.algorithms.wrappers.choice import IFCAMIR
from shoal.core.errors import require
from shoal.engine import Algorithm

Choice = Literal["client", "server", "shares"]
"""Who decides which model a client trains: the client among all models, the server that sends it one, or nobody, since
clients train for all models and say to which share."""

_SUPPORTED = (FedAvg, IFCA, IFCAMIR, HypCluster, FedSoft, CFL, Ditto, FedOpt)


def choice_of(algorithm: Algorithm) -> Choice:
    """Who decides which model a client trains.

    Raises:
        InputError: the algorithm, or how it is set, needs more of clients in a round than one reply.
    """
    chain = list(with_bases(algorithm))
    for each in chain:
        names = ", ".join(kind.title for kind in _SUPPORTED)
        require(
            type(each) in _SUPPORTED,
            f"'algorithm.name': {type(each).__name__} does not run on several machines; those that do are {names}",
        )
        if isinstance(each, HypCluster):
            require(each.start == "random", "HypCluster's 'start' must be \"random\" on several machines")
        if isinstance(each, FedSoft):
            require(each.selection is None, "FedSoft's 'selection' must be left out on several machines")
        ifca = each.ifca if isinstance(each, IFCAMIR) else each
        if isinstance(ifca, IFCA):
            require(ifca.redraw is None, "IFCA's 'redraw' must be left out on several machines")
    last = chain[-1]
    if isinstance(last, CFL):
        return "server"
    return "shares" if isinstance(last, FedSoft) else "client"


def at_server(algorithm: Algorithm) -> Algorithm:
    """What the server runs: all but what clients keep to themselves, as Ditto's personal models."""
    if isinstance(algorithm, Ditto):
        return at_server(algorithm.base)
    return replace(algorithm, base=at_server(algorithm.base)) if isinstance(algorithm, FedOpt) else algorithm


def at_client(algorithm: Algorithm) -> Algorithm:
    """What a client runs: all but what the server alone does, as FedOpt's steps."""
    if isinstance(algorithm, FedOpt):
        return at_client(algorithm.base)
    return replace(algorithm, base=at_client(algorithm.base)) if isinstance(algorithm, Ditto) else algorithm
