"""What came out of a round: the merged updates, the models that clients use, and a report."""

from dataclasses import dataclass

from torch import Tensor

from shoal.core.representation import one_line
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.personal_models import PersonalModels
from shoal.engine.rounds.round_plan import RoundPlan
from shoal.engine.rounds.round_updates import RoundUpdates


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The outcome of a round's local trainings.

    Args:
        models: (K, P), moved by the aggregation weights of all trainings.
        kept: for each training what was kept of the updates (n, d), or None.

    Example:
        >>> import torch, shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.Scaffold(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     state, clients = training.start(), torch.arange(2)
        ...     plan = training.algorithm.plan(state, training.cohort_of(state, clients))
        ...     aggregate, _ = training.trainer(state, clients).train(state, plan)
        ...
        >>> aggregate.models.shape, aggregate.kept[0].shape
        (torch.Size([1, 4]), torch.Size([2, 4]))
        >>> aggregate.models.allclose(state.models + aggregate.kept[0].mean(dim=0))
        True
    """

    models: Tensor
    kept: tuple[Tensor | None, ...]
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class Deployed:
    """The models that clients use after training, and that are attacked.

    Args:
        models: (S, P): the K models of the clusters, or as many personal models as there are clients, which may be
            made when they are asked for.
        model: (n,) int64, the index of each client's model.
        assignment: (n,) int64, the cluster of each client.
        fine_tuning: local trainings that every client does from its model, one after another, on all its examples, of
            which nothing is sent; None in the place of one: the run's. `Training.deployed` does them, and gives the
            models after them.

    Example:
        >>> import torch, shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     for algorithm in (shoal.FedAvg(), shoal.LocalOnly()):
        ...         training = shoal.Training(federation, algorithm, shoal.LocalSGD(), engine, shoal.Stream(0))
        ...         deployed, losses = training.deployed(training.start())
        ...         print(len(deployed.models), deployed.model.tolist(), losses.shape)
        ...
        1 [0, 0] torch.Size([2])
        2 [0, 1] torch.Size([2])
    """

    models: Tensor | PersonalModels
    model: Tensor
    assignment: Tensor
    fine_tuning: tuple[LocalSGD | None, ...] = ()
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class RoundReport:
    """What happened in a round.

    Args:
        cohort: (n,) int64, positions of the clients that took part.
        plan: what they did.
        risks_estimated: whether the risks were estimated anew at the end of this round.
        seconds: wall time of "choose", "train" and "red_team".
        updates: what the server received; None in a round that is not recorded (`Training.record_every`).

    Example:
        >>> import shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     training = shoal.Training(*setting, participation=0.5)
        ...     state, report = training.round(training.start())
        ...
        >>> state.round, len(report.cohort), report.assignment, sorted(report.seconds)
        (1, 1, tensor([0]), ['choose', 'red_team', 'train'])
    """

    cohort: Tensor
    plan: RoundPlan
    risks_estimated: bool
    seconds: dict[str, float]
    updates: RoundUpdates | None = None
    __repr__ = one_line

    @property
    def assignment(self) -> Tensor:
        """(n,) int64, the cluster of each client."""
        return self.plan.assignment

    @property
    def losses(self) -> Tensor | None:
        """(n, K) float64, the losses that decided the assignment; None where none did."""
        return self.plan.losses
