"""Federated training: local steps of many clients, rounds, and the protocols of algorithms and defences.

`backends` contains two interchangeable implementations of local training. `rounds` plans and aggregates each round.
`protocols.py` declares the interfaces that algorithms, attacks and defences implement. The package may import `core`,
`data` and `models`.
"""

from shoal.engine.backends.gradient_clipping import require_per_example_gradients
from shoal.engine.backends.selection import Backend, check_backend, check_examples, resolve_backend
from shoal.engine.engine import DivergenceError, Engine, Precision
from shoal.engine.local_sgd import (
    Gradient,
    GradientPrivacy,
    InputAugmentation,
    LinearTerm,
    LocalRandomness,
    LocalSGD,
    Objective,
    StepRule,
    TorchOptimizer,
    require_plain_sgd,
)
from shoal.engine.protocols import (
    Algorithm,
    ClientTrainings,
    ClusterRound,
    HasClientTrainings,
    LocalDefense,
    MaliciousClients,
    MaliciousTraining,
    PlanRule,
    Release,
    RiskEstimator,
    ScalableDefense,
    SteeringRule,
    UpdateFilter,
    client_trainings,
    with_bases,
)
from shoal.engine.rounds.client_updates import client_updates
from shoal.engine.rounds.cohort_trainer import Aggregator, averaging_weights
from shoal.engine.rounds.leaving import Forgetting, Leaving
from shoal.engine.rounds.remote import (
    ClientUpdate,
    ReceivedUpdates,
    RemoteRounds,
    RunsRemotely,
    client_round,
    remote_rounds,
    server_plan,
    server_round,
    summed_round,
)
from shoal.engine.rounds.round_plan import (
    Aggregate,
    Cohort,
    Departure,
    DeployedModels,
    LocalTraining,
    PersonalModels,
    RoundPlan,
    RoundReport,
    RoundUpdates,
    TrainingPhase,
)
from shoal.engine.rounds.training import Training
from shoal.engine.state import ClientVectors, RiskEstimate, State, Tensors, unknown_intervals

__all__ = [
    "Aggregate", "Aggregator", "Algorithm", "Backend", "ClientTrainings", "ClientUpdate", "ClientVectors",
    "ClusterRound", "Cohort", "Departure", "DeployedModels", "DivergenceError", "Engine", "Forgetting", "Gradient",
    "GradientPrivacy", "HasClientTrainings", "InputAugmentation", "Leaving", "LinearTerm", "LocalDefense",
    "LocalRandomness", "LocalSGD", "LocalTraining", "MaliciousClients", "MaliciousTraining", "Objective",
    "PersonalModels", "PlanRule", "Precision", "ReceivedUpdates", "Release", "RemoteRounds", "RiskEstimate",
    "RiskEstimator", "RoundPlan", "RoundReport", "RoundUpdates", "RunsRemotely", "ScalableDefense", "State",
    "SteeringRule", "StepRule", "Tensors", "TorchOptimizer", "Training", "TrainingPhase", "UpdateFilter",
    "averaging_weights", "check_backend", "check_examples", "client_round", "client_trainings", "client_updates",
    "remote_rounds", "require_per_example_gradients", "require_plain_sgd", "resolve_backend", "server_plan",
    "server_round", "summed_round", "unknown_intervals", "with_bases",
]  # fmt: skip
