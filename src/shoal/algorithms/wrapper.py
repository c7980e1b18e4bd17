"""Base classes of algorithms that build on another algorithm."""

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.engine import (
    Aggregate,
    Algorithm,
    Cohort,
    DeployedModels,
    Engine,
    LocalSGD,
    RoundPlan,
    State,
    client_trainings,
)
from shoal.engine.protocols import with_bases


class Derived:
    """An algorithm that inherits the methods of another algorithm, `inner`.

    `inner` is a field, or a property computed from fields, such as ``IFCA(self.clusters)``.
    """

    @property
    def inner(self) -> Algorithm:
        """The algorithm that provides the inherited methods."""
        return FedAvg()

    def check(self, local: LocalSGD, risk_period: int) -> None:
        self.inner.check(local, risk_period)

    def check_layout(self, layout: Layout) -> None:
        """Raise `InputError` if this algorithm cannot train a network with the given layout."""

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """Return the initial state of `inner` after `add_tensors`."""
        self.check_layout(engine.model.layout)
        return self.add_tensors(self.inner.init(engine, federation, local, stream), engine.model.layout)

    def add_tensors(self, state: State, layout: Layout) -> State:
        """Add this algorithm's tensors to the initial state of `inner`."""
        return state

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        return self.inner.plan(state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        return self.inner.server_update(state, cohort, plan, aggregate)

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        return self.inner.deployed_models(state, cohort)


class Wrapper(Derived):
    """An algorithm that changes another algorithm, ``base`` (the table ``[algorithm.base]`` of a configuration).

    Example:
        >>> import shoal.toy
        >>> from shoal.algorithms import Wrapper
        >>> from shoal.core.settings import settings
        >>> @settings
        ... class LateStart(Wrapper):
        ...     base: shoal.engine.Algorithm = shoal.FedAvg()
        ...     def server_update(self, state, cohort, plan, aggregate):
        ...         return super().server_update(state, cohort, plan, aggregate) if cohort.round > 1 else state
        ...
        >>> federation, model, local = shoal.toy.two_groups()
        >>> late = shoal.simulate(federation, model, LateStart(), local, rounds=2).state.models
        >>> late.equal(shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2).state.models)
        False
    """

    base: Algorithm

    @property
    def inner(self) -> Algorithm:
        return self.base


def choice_noise(algorithm: object) -> float | None:
    """Return the noise multiplier of the Gaussian mechanism that assigns clients to clusters, or None."""
    declared = (getattr(base, "choice_noise", None) for base in with_bases(algorithm))
    return next((noise for noise in declared if noise is not None), None)


def require_kept_models(wrapper: object) -> None:
    """Raise `InputError` if a base of the wrapper changes its number of models."""
    _, *bases = with_bases(wrapper)
    for base in bases:
        require(
            not getattr(base, "changes_clusters", False),
            f"{type(wrapper).__name__}'s 'base' must have a fixed number of models (got {type(base).__name__})",
        )


def require_no_first_round(wrapper: object) -> None:
    """Raise `InputError` if a base of the wrapper trains differently in its first round."""
    _, *bases = with_bases(wrapper)
    for base in reversed(bases):
        require(
            client_trainings(base, LocalSGD()).first is None,
            f"{type(wrapper).__name__}'s 'base' must train in its first round as in all later rounds "
            f"(got {type(base).__name__})",
        )
