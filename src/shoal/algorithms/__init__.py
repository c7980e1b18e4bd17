"""Federated algorithms, one per file, as frozen dataclasses that implement `shoal.engine.Algorithm`.

This package may import `engine` and the layers below it, never `attacks`. To add an algorithm, add a file to a
subpackage. Import the class here and list it in `__all__`.
"""

from collections.abc import Mapping
from typing import Any

from shoal.algorithms.clusters.by_group import ByGroup
from shoal.algorithms.clusters.cfl import CFL
from shoal.algorithms.clusters.fedem import FedEM
from shoal.algorithms.clusters.fedrc import FedRC
from shoal.algorithms.clusters.fedsoft import FedSoft
from shoal.algorithms.clusters.fesem import FeSEM
from shoal.algorithms.clusters.hypcluster import HypCluster
from shoal.algorithms.clusters.ifca import IFCA, Redraw
from shoal.algorithms.clusters.one_shot import OneShotClustering
from shoal.algorithms.clusters.pacfl import PACFL
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.one_model.fedopt import FedOpt
from shoal.algorithms.one_model.fedprox import FedProx
from shoal.algorithms.one_model.scaffold import Scaffold
from shoal.algorithms.one_model.server_only import ServerOnly
from shoal.algorithms.personal.apfl import APFL
from shoal.algorithms.personal.ditto import Ditto
from shoal.algorithms.personal.fedbn import FedBN
from shoal.algorithms.personal.fedrep import FedRep
from shoal.algorithms.personal.local import FineTuning, LocalOnly
from shoal.algorithms.personal.mr_mtl import MRMTL
from shoal.algorithms.personal.per_fedavg import PerFedAvg
from shoal.algorithms.private.cluster_size_floor import ClusterSizeFloor
from shoal.algorithms.private.group_privacy import GroupPrivacy
from shoal.algorithms.private.private_means import PrivateMeans
from shoal.algorithms.private.r_dpcfl import RDPCFL
from shoal.algorithms.wrapper import Derived, Wrapper
from shoal.algorithms.wrappers.choice import IFCAMIR, IFCAWithinLimit, PricedChoice, RiskAwareChoice
from shoal.algorithms.wrappers.coordinate_wise import CoordinateMedian, TrimmedMean
from shoal.algorithms.wrappers.early_stopping import EarlyStopping
from shoal.algorithms.wrappers.multi_krum import MultiKrum
from shoal.algorithms.wrappers.pooling import Pooling
from shoal.algorithms.wrappers.shared_body import SharedBody
from shoal.algorithms.wrappers.starts import FedAvgStart, OneShotStart, ServerStart

__all__ = [
    "ALGORITHMS", "APFL", "CFL", "IFCA", "IFCAMIR", "MRMTL", "PACFL", "RDPCFL", "ByGroup", "ClusterSizeFloor",
    "CoordinateMedian", "Derived", "Ditto", "EarlyStopping", "FeSEM", "FedAvg", "FedAvgStart", "FedBN", "FedEM",
    "FedOpt", "FedProx", "FedRC", "FedRep", "FedSoft", "FineTuning", "GroupPrivacy", "HypCluster",
    "IFCAWithinLimit", "LocalOnly", "MultiKrum", "OneShotClustering", "OneShotStart", "PerFedAvg", "Pooling",
    "PricedChoice", "PrivateMeans", "Redraw", "RiskAwareChoice", "Scaffold", "ServerOnly", "ServerStart",
    "SharedBody", "TrimmedMean", "Wrapper",
]  # fmt: skip

ALGORITHMS: Mapping[str, Any] = {cls.name: cls for cls in map(vars().get, __all__) if cls and hasattr(cls, "name")}
"""The algorithms by their names in a configuration ('algorithm.name')."""
