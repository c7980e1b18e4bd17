"""Fine-tuning: after the last round every client trains its cluster's model further on its own examples."""

from dataclasses import replace
from typing import ClassVar, Literal

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Wrapper
from shoal.core.settings import settings
from shoal.engine import Algorithm, ClientTrainings, Cohort, Deployed, LocalSGD, State, client_trainings


@settings
class FineTuning(Wrapper):
    """The rounds are those of ``base``, bit for bit; then client i uses what local training makes of its model.

    Its model is the one that ``base`` says it uses, its cluster's or a personal one. Every client trains once more on
    all its examples, with the defences of its cluster and at the learning rate of the round after the last. Nothing is
    sent, so the server's filter has nothing to act on. The epsilon of DP-SGD counts this training too; with its noise
    in sums it is refused. The N models are made when they are asked for and stored in no checkpoint.

    Args:
        base: trains the shared models.
        local: local training of the fine-tuning; left out: as in a round.

    The baseline "FedAvg with fine-tuning" of most comparisons.

    Source: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage 2019, arXiv:1910.10252; Collins, Hassani, Mokhtari,
    Shakkottai 2022, arXiv:2205.13692 (FedAvg-FT).

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.FedAvg(), shoal.FineTuning(shoal.FedAvg())
        >>> fedavg, tuned = (shoal.simulate(federation, model, rule, local, rounds=3) for rule in algorithms)
        >>> tuned.state.models.equal(fedavg.state.models)
        True
        >>> [result.summary.overall["train_accuracy.overall"] for result in (fedavg, tuned)]
        [0.5, 1.0]
    """

    base: Algorithm = FedAvg()
    local: LocalSGD | None = None
    name: Literal["fine-tuning"] = "fine-tuning"
    title: ClassVar[str] = "Fine-tuning"

    def client_trainings(self, local: LocalSGD) -> ClientTrainings:
        """The base's, and one more after the last round."""
        base = client_trainings(self.base, local)
        return replace(base, final=(*base.final, self.local or local))

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Everybody trains what the base deploys."""
        deployed = super().deployed(state, cohort)
        return replace(deployed, fine_tuning=(*deployed.fine_tuning, self.local))
