"""Algorithms that are defined by another one, and what a wrapper cannot wrap."""

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Algorithm, Cohort, Deployed, Engine, LocalSGD, RoundPlan, State, client_trainings
from shoal.engine.protocols import with_bases


class Derived:
    """An algorithm that is `inner` in all methods that it does not override.

    `inner` is FedAvg by default; it may be a field, or be built from the fields, as ``IFCA(self.clusters)``.
    """

    @property
    def inner(self) -> Algorithm:
        """The other algorithm."""
        return FedAvg()

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Raise `InputError` where `inner` does."""
        self.inner.check(local, risk_period)

    def check_layout(self, layout: Layout) -> None:
        """Raise `InputError` where this algorithm cannot train a network of that layout; any by default."""

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """The state of `inner`, as `begun` makes it."""
        self.check_layout(engine.model.layout)
        return self.begun(self.inner.init(engine, federation, local, stream), engine.model.layout)

    def begun(self, state: State, layout: Layout) -> State:
        """The ``state`` of `inner` before the first round with this algorithm's own tensors."""
        return state

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The plan of `inner`."""
        return self.inner.plan(state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The update of `inner`."""
        return self.inner.server_update(state, cohort, plan, aggregate)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """The models of `inner`."""
        return self.inner.deployed(state, cohort)


class Wrapper(Derived):
    """An algorithm around any other, its field ``base``, which is a table ``[algorithm.base]`` of a configuration.

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
        """The base."""
        return self.base


def choice_noise(algorithm: object) -> float | None:
    """The noise multiplier of the Gaussian mechanism by which clients' clusters are chosen; None: there is none."""
    declared = (getattr(base, "choice_noise", None) for base in with_bases(algorithm))
    return next((noise for noise in declared if noise is not None), None)


def require_kept_models(wrapper: object) -> None:
    """Raise `InputError` where a base of the wrapper changes its number of models."""
    _, *bases = with_bases(wrapper)
    for base in bases:
        require(
            not getattr(base, "changes_clusters", False),
            f"{type(wrapper).__name__}'s 'base' must keep its number of models, which {type(base).__name__} changes "
            "while it trains",
        )


def require_no_first_round(wrapper: object) -> None:
    """Raise `InputError` where a base of the wrapper trains otherwise in the first of its rounds.

    After rounds of the wrapper that would not be the federation's first round, as which its epsilon is counted.
    """
    _, *bases = with_bases(wrapper)
    for base in reversed(bases):
        require(
            client_trainings(base, LocalSGD()).first is None,
            f"{type(wrapper).__name__}'s 'base' must not have a first round of its own, as {type(base).__name__} has",
        )
