"""A client's privacy ledger: what everything that left the node has spent on its data, in a file on its own disk.

It has the steps of DP-SGD behind each update, and each choice, histogram and vote, with or without noise. Each is
written down before it is computed, so that a client that dies has spent too much and never too little.

An older copy of the file would count too little. So each charge is a link in a chain of hashes, whose last link every
reply carries, and every offer brings back: a client whose ledger has not that link stops. A link is salted anew with a
secret number: it says how many charges there are, and nothing of them, and equal charges after an older copy give other
links. A server that lies about the link can stop the client, and nothing else.
"""

import hashlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field

from shoal.core.atomic_files import PRIVATE, private_folder, remove_unfinished, write_text
from shoal.core.errors import InputError
from shoal.core.foreign_files import read_json
from shoal.core.settings import Count, NonNegativeFloat, settings
from shoal.defenses import accounting
from shoal.engine import LocalSGD
from shoal_flower.messages import NotAllowedError, Stamp

LEDGER = "ledger.json"
"""The file in the client's folder."""

Steps = tuple[NonNegativeFloat, Annotated[float, Field(gt=0, le=1, strict=True)], Count]
"""A noise multiplier (0: no differential privacy), a sampling rate, and the number of such steps."""

LedgerEntry = Literal["choice", "histogram", "vote"]
"""What leaves the node beside updates."""

Answers = tuple[LedgerEntry, NonNegativeFloat, Count]
"""A kind, the epsilon of each (0: without noise, and so infinite), and the number of them."""


@settings
class Ledger:
    """All that a client has been charged, over all runs.

    Args:
        steps: local steps on its data, without two of the same noise and rate.
        answers: without two of the same kind and epsilon.
        rounds: of training.
        chain: the hash of each charge, in hexadecimal.
        salt: of the last hash, secret.

    >>> ledger = Ledger().after([LocalSGD(epochs=1, batch_size=10)], examples=100)
    >>> ledger = ledger.after([LocalSGD(epochs=1, batch_size=10)], examples=100).answered("vote", 0.5)
    >>> ledger.steps, ledger.answers, ledger.rounds, ledger.stamp[0]
    (((0.0, 0.1, 20),), (('vote', 0.5, 1),), 2, 3)
    """

    steps: tuple[Steps, ...] = ()
    answers: tuple[Answers, ...] = ()
    rounds: Count = 0
    chain: tuple[str, ...] = ()
    salt: str = ""

    def epsilon(self, delta: float) -> float:
        """The epsilon that has been spent; infinite once something left the node without noise.

        The steps by the "rdp" accountant. An answer of pure epsilon adds at most that, and also no more Renyi
        divergence than a Gaussian of noise multiplier 1 / epsilon; the smaller total of the two is given.

        Source: Bun and Steinke 2016, arXiv:1605.02065, Proposition 1.4.
        """
        if any(epsilon == 0 for _, epsilon, _ in self.answers):
            return math.inf
        pure = sum(epsilon * count for _, epsilon, count in self.answers)
        gaussian = [(1 / epsilon, 1.0, count) for _, epsilon, count in self.answers]
        added = accounting.composed(self.steps, delta) + pure
        return min(added, accounting.composed((*self.steps, *gaussian), delta)) if gaussian else added

    @property
    def stamp(self) -> Stamp:
        """What the server keeps of this ledger."""
        return (len(self.chain), self.chain[-1]) if self.chain else (0, "")

    def number_of(self, kind: LedgerEntry) -> int:
        """How many answers of this kind were given."""
        return sum(count for other, _, count in self.answers if other == kind)

    @staticmethod
    def noise_of(local: LocalSGD, *, in_sum: bool = False) -> float:
        """The noise multiplier of a client's own steps; 0 without DP-SGD.

        Where clients share the noise of a sum it is the client's share; ``in_sum``, a secure one, that of the others,
        who are at least m - 1.
        """
        rule, steps = accounting.private_rule(local), local.gradient_privacy
        if rule is None or steps is None:
            return 0.0
        if in_sum and rule.noise == "sum":
            return steps.noise_multiplier * math.sqrt((rule.min_clients or 1) - 1)
        return steps.noise_multiplier

    def after(self, trainings: Sequence[LocalSGD], examples: int, *, copies: int = 1, in_sum: bool = False) -> Self:
        """The ledger with one round more, of these local ``trainings`` on so many examples.

        ``copies`` are those of the most frequent record (`accounting.of_copies`).
        """
        total = Counter({(noise, rate): count for noise, rate, count in self.steps})
        for local in trainings:
            noise, rate = self.noise_of(local, in_sum=in_sum), local.batch(examples) / examples
            total[accounting.of_copies(noise, rate, copies)] += local.steps_of(examples)
        steps = tuple((noise, rate, count) for (noise, rate), count in sorted(total.items()))
        return self._linked(replace(self, steps=steps, rounds=self.rounds + 1))

    def answered(self, kind: LedgerEntry, epsilon: float | None) -> Self:
        """The ledger with one answer more, of pure ``epsilon``; None: without noise."""
        total = Counter({(other, cost): count for other, cost, count in self.answers})
        total[kind, epsilon or 0.0] += 1
        return self._linked(
            replace(self, answers=tuple((other, cost, count) for (other, cost), count in sorted(total.items())))
        )

    def _linked(self, charged: Self) -> Self:
        salted = replace(charged, salt=secrets.token_hex(16))
        return replace(salted, chain=(*self.chain, salted._link(self.chain)))

    def _link(self, chain: tuple[str, ...]) -> str:
        """The hash of these charges after those of ``chain``."""
        text = json.dumps([chain[-1:], self.salt, self.steps, self.answers, self.rounds])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def save(self, path: Path) -> None:
        """Write it, whole or not at all, for its owner alone; the folder's lock must be held."""
        remove_unfinished(private_folder(path.parent))
        write_text(path, json.dumps(vars(self), indent=2) + "\n", mode=PRIVATE)

    @staticmethod
    def load(path: Path) -> "Ledger":
        """The ledger in a file; an empty one where there is none.

        Raises:
            InputError: the file is damaged; a client must not go on as if it had spent nothing.
        """
        if not path.exists():
            return Ledger()
        try:
            table = read_json(path)
            if table.keys() != vars(Ledger()).keys():
                raise ValueError(f"its keys are {sorted(table)}")
            ledger = Ledger(**table)
            if ledger.chain[-1:] != (ledger._link(ledger.chain[:-1]),):
                raise ValueError("its last hash is not that of its numbers")
            return ledger
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(
                f"{path}: is no privacy ledger: {error}; the client stops, and an older copy of the file would count "
                "too little"
            ) from error

    @staticmethod
    def newest(folder: Path, stamp: Stamp) -> "Ledger":
        """The ledger in a client's ``folder``, which must have every charge that ``stamp`` is of.

        Raises:
            NotAllowedError: it has not.
            InputError: it is damaged.
        """
        path, (count, last) = folder / LEDGER, stamp
        ledger = Ledger.load(path)
        if count and ledger.chain[count - 1 : count] != (last,):
            here = f"others, {ledger.stamp[0]} of them" if ledger.chain else "none"
            raise NotAllowedError(
                f"the server has seen {count} charges of this client's ledger, and {path} has {here}: it would count "
                "too little, so the client stops; only the newest ledger lets it go on"
            )
        return ledger
