"""A client's privacy ledger: what DP-SGD has spent on its data, in a file on its own disk.

A round is written down before it is trained, so that a client that dies in it has spent too much and never too little.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError
from shoal.core.settings import Count, NonNegativeFloat, OpenFraction, settings
from shoal.defenses import accounting
from shoal.defenses.dp_sgd import Accountant
from shoal.engine import LocalSGD

Steps = tuple[NonNegativeFloat, Annotated[float, Field(gt=0, le=1, strict=True)], Count]
"""A noise multiplier (0: no differential privacy), a sampling rate, and the number of such steps."""


@settings
class Ledger:
    """The local steps that a client has taken on its data, over all runs.

    Args:
        steps: without two of the same noise and rate.
        rounds: in which they were taken.
        delta: of the epsilon that is reported: the largest that any run asked for.
        accountant: of the last run.

    >>> ledger = Ledger().after([LocalSGD(epochs=1, batch_size=10)], examples=100)
    >>> ledger.after([LocalSGD(epochs=1, batch_size=10)], examples=100).steps, ledger.rounds
    (((0.0, 0.1, 20),), 1)
    """

    steps: tuple[Steps, ...] = ()
    rounds: Count = 0
    delta: OpenFraction = 1e-5
    accountant: Accountant = "rdp"

    @property
    def epsilon(self) -> float:
        """The epsilon that has been spent; infinite once a round was trained without differential privacy."""
        return accounting.composed(self.steps, self.delta, self.accountant)

    def after(self, trainings: Sequence[LocalSGD], examples: int) -> "Ledger":
        """The ledger with one round more, of these local ``trainings`` on so many examples."""
        rules = [accounting.private_rule(local) for local in trainings]
        total = Counter({(noise, rate): count for noise, rate, count in self.steps})
        for local, rule in zip(trainings, rules, strict=True):
            noise = 0.0 if rule is None else rule.noise_multiplier
            total[noise, local.batch(examples) / examples] += local.steps_of(examples)
        private = next((rule for rule in rules if rule is not None), self)
        return Ledger(
            steps=tuple((noise, rate, count) for (noise, rate), count in sorted(total.items())),
            rounds=self.rounds + 1,
            delta=private.delta if self.rounds == 0 else max(private.delta, self.delta),
            accountant=private.accountant,
        )

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(vars(self), indent=2) + "\n")

    @staticmethod
    def load(path: Path) -> "Ledger":
        """The ledger in a file; an empty one where there is none.

        Raises:
            InputError: the file is damaged; a client must not go on as if it had spent nothing.
        """
        if not path.exists():
            return Ledger()
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            if table.keys() != vars(Ledger()).keys():
                raise ValueError(f"its keys are {sorted(table)}")
            return Ledger(**table)
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: is no privacy ledger: {error}; restore it from a copy") from error
