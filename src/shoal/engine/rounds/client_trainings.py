"""The local trainings that a client takes in a run, from which the privacy that they spend is counted."""

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
    """The local trainings that a client takes on its own examples in a run, whether or not it sends their results.

    Args:
        rounds: those of each round that it takes part in, in order.
        first: those of the run's first round with clients, in their place; None: the same.
        final: those after the last round, by every client (`Deployed.fine_tuning`).

    Example:
        >>> import shoal
        >>> from shoal.engine import client_trainings
        >>> ditto = client_trainings(shoal.Ditto(local=shoal.LocalSGD(epochs=3)), shoal.LocalSGD(epochs=1))
        >>> [local.epochs for local in ditto.rounds]
        [1, 3]
        >>> tuned = client_trainings(shoal.FedProx(shoal.FineTuning()), shoal.LocalSGD())
        >>> len(tuned.rounds), tuned.first, len(tuned.final)
        (1, None, 1)
    """

    rounds: tuple[LocalSGD, ...]
    first: tuple[LocalSGD, ...] | None = None
    final: tuple[LocalSGD, ...] = ()

    def changed(self, change: _Change) -> "ClientTrainings":
        """Every training changed, for example by defences."""
        first = None if self.first is None else tuple(map(change, self.first))
        return ClientTrainings(tuple(map(change, self.rounds)), first, tuple(map(change, self.final)))


@runtime_checkable
class HasClientTrainings(Protocol):
    """An algorithm whose clients do not train exactly once a round by the run's local training.

    It declares their trainings beside its plan, since privacy is counted before the first round.
    """

    def client_trainings(self, local: LocalSGD) -> ClientTrainings:
        """The trainings of a client, where ``local`` is the run's local training."""
        ...


def client_trainings(algorithm: object, local: LocalSGD) -> ClientTrainings:
    """The trainings of a client of an algorithm in a run of local training ``local``.

    An algorithm that does not declare them (`HasClientTrainings`) has those of the one that it wraps, in any field.
    """
    if isinstance(algorithm, HasClientTrainings):
        return algorithm.client_trainings(local)
    for declared in fields(algorithm) if is_dataclass(algorithm) else ():
        value = getattr(algorithm, declared.name)
        if isinstance(value, Algorithm):
            return client_trainings(value, local)
    return ClientTrainings((local,))


def require_counted(
    algorithm: object, local: LocalSGD, trained: Iterable[Sequence[LocalSGD | None]], *, final: bool = False
) -> None:
    """Raise `InputError` where clients take local trainings that an algorithm does not declare.

    Args:
        algorithm: of the run.
        local: the run's local training.
        trained: sequences of trainings that clients take in a round; None stands for the run's.
        final: whether that is after the last round.
    """
    declared = client_trainings(algorithm, local)
    sequences = (declared.final,) if final else (declared.rounds, declared.first or ())
    allowed = [Counter(map(_spending, sequence)) for sequence in sequences]
    for sequence in trained:
        taken = Counter(_spending(local if settings is None else settings) for settings in sequence)
        require(
            any(taken <= counts for counts in allowed),
            f"with DP-SGD every local training must be counted, but {type(algorithm).__name__} has clients train what "
            "its method 'client_trainings' does not say (see shoal.engine.HasClientTrainings)",
        )


def _spending(local: LocalSGD) -> tuple[object, ...]:
    """The settings that decide, beside defences and a client's examples, how much privacy a training spends."""
    return local.batch_size, local.epochs, local.steps
