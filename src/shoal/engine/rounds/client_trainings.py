"""The local trainings that a client takes in a run, for whoever counts what they spend of privacy."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Protocol, runtime_checkable

from shoal.core.errors import require
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.protocols import Algorithm

_Change = Callable[[LocalSGD], LocalSGD]


@dataclass(frozen=True)
class ClientTrainings:
    """The local trainings that a client takes on its own examples in a run, whoever is sent what comes of them.

    Args:
        rounds: in each round that it takes part in, one after another.
        first: in the first round of the run that has clients, in their place; None: the same.
        final: after the last round, by every client (`Deployed.fine_tuning`).

    Example:
        >>> import shoal
        >>> from shoal.engine import client_trainings
        >>> ditto = client_trainings(shoal.Ditto(local=shoal.LocalSGD(epochs=3)), shoal.LocalSGD(epochs=1))
        >>> [each.epochs for each in ditto.rounds]
        [1, 3]
    """

    rounds: tuple[LocalSGD, ...]
    first: tuple[LocalSGD, ...] | None = None
    final: tuple[LocalSGD, ...] = ()

    def changed(self, change: _Change) -> "ClientTrainings":
        """With every training changed, such as by defences."""
        first = None if self.first is None else tuple(map(change, self.first))
        return ClientTrainings(tuple(map(change, self.rounds)), first, tuple(map(change, self.final)))


@runtime_checkable
class HasClientTrainings(Protocol):
    """An algorithm whose clients train otherwise than once a round by the run's local training.

    It says so here, beside its plan, for whoever counts what the rounds spend of privacy: a plan is gone after its
    round, and some is counted before the first.

    Example:
        >>> import shoal
        >>> from shoal.engine import HasClientTrainings
        >>> [isinstance(each, HasClientTrainings) for each in (shoal.Ditto(), shoal.RDPCFL(), shoal.IFCA())]
        [True, True, False]
    """

    def client_trainings(self, local: LocalSGD) -> ClientTrainings:
        """What a client trains, where ``local`` is the run's local training."""
        ...


def client_trainings(algorithm: object, local: LocalSGD) -> ClientTrainings:
    """What a client of an algorithm trains in a run of local training ``local``.

    An algorithm that says nothing of it (`HasClientTrainings`) is as the one that it wraps, in a field of any name.

    Example:
        >>> import shoal
        >>> from shoal.engine import client_trainings
        >>> tuned = client_trainings(shoal.FedProx(shoal.FineTuning()), shoal.LocalSGD())
        >>> len(tuned.rounds), tuned.first, len(tuned.final)
        (1, None, 1)
    """
    if isinstance(algorithm, HasClientTrainings):
        return algorithm.client_trainings(local)
    for each in fields(algorithm) if is_dataclass(algorithm) else ():
        value = getattr(algorithm, each.name)
        if isinstance(value, Algorithm):
            return client_trainings(value, local)
    return ClientTrainings((local,))


def require_counted(
    algorithm: object, local: LocalSGD, trained: Iterable[Sequence[LocalSGD | None]], *, final: bool = False
) -> None:
    """Raise `InputError` where clients take local trainings that an algorithm does not say they take.

    Args:
        algorithm: that of the run.
        local: the run's local training.
        trained: what some clients train in a round; None stands for the run's.
        final: whether that is after the last round.
    """
    said = client_trainings(algorithm, local)
    allowed = [Counter(map(_spending, each)) for each in ((said.final,) if final else (said.rounds, said.first or ()))]
    for each in trained:
        found = Counter(_spending(local if own is None else own) for own in each)
        require(
            any(found <= some for some in allowed),
            f"with DP-SGD every local training must be counted, but {type(algorithm).__name__} has clients train what "
            "its method 'client_trainings' does not say (see shoal.engine.HasClientTrainings)",
        )


def _spending(local: LocalSGD) -> tuple[object, ...]:
    """What decides, beside defences and a client's examples, how much privacy a training spends."""
    return local.batch_size, local.epochs, local.steps
