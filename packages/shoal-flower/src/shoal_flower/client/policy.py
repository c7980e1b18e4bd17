"""A node's policy, and the ledger of the privacy that its answers have spent.

The untrusted server writes the configuration, the models and the questions. The node's owner writes the policy
(``policy = "/etc/shoal/policy.toml"`` in ``--node-config``), and the node refuses all requests that the policy does not
allow.
"""

import hashlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from filelock import FileLock
from pydantic import Field

from shoal.config.schema import Config
from shoal.config.toml_files import parse, read_toml
from shoal.core.atomic_files import PRIVATE, private_folder, remove_unfinished, write_text
from shoal.core.errors import InputError, quote, require
from shoal.core.foreign_files import read_json
from shoal.core.settings import Count, NonNegativeFloat, Positive, PositiveFloat, settings
from shoal.data import Columns
from shoal.defenses import accounting
from shoal.engine import LocalSGD
from shoal_flower.flower_config import NodeSettings
from shoal_flower.messages import NotAllowedError, Stamp

LEDGER = "ledger.json"
"""The ledger's file in the client's folder."""

Steps = tuple[NonNegativeFloat, Annotated[float, Field(gt=0, le=1, strict=True)], Count]
"""A noise multiplier (0: no differential privacy), a sampling rate, and the number of such steps."""

LedgerEntry = Literal["choice", "histogram", "vote", "leave"]
"""A kind of answer besides updates; "leave" is the last entry of a client that leaves for good, and costs nothing."""

Answers = tuple[LedgerEntry, NonNegativeFloat, Count]
"""A kind, the epsilon of each answer (0 means no noise), and the number of answers."""


@settings
class Ledger:
    """All charges to a client's data, over all runs.

    Charges are the local steps behind each update, and each choice, histogram and vote. Each charge is written before
    the computation, so a crash can only overcount the spent privacy.

    An older copy of the ledger would undercount the spent privacy. A chain of hashes with one link per charge reveals
    an older copy. The server receives the last link with each reply and returns the link with the next offer. A client
    refuses an offer whose link is missing in the client's ledger. Each link has a secret salt and reveals only the
    number of charges. A server that sends a wrong link can stop the client, but gains nothing else.

    Args:
        steps: the number of local steps, by noise multiplier and sampling rate.
        answers: the number of answers, by kind and epsilon.
        rounds: the number of training rounds.
        chain: the hash of each charge, in hexadecimal.
        salt: the secret salt of the last hash.

    >>> ledger = Ledger().after_training([LocalSGD(epochs=1, batch_size=10)], examples=100)
    >>> ledger = ledger.after_training([LocalSGD(epochs=1, batch_size=10)], examples=100).after_answer("vote", 0.5)
    >>> ledger.steps, ledger.answers, ledger.rounds, ledger.stamp[0]
    (((0.0, 0.1, 20),), (('vote', 0.5, 1),), 2, 3)
    """

    steps: tuple[Steps, ...] = ()
    answers: tuple[Answers, ...] = ()
    rounds: Count = 0
    chain: tuple[str, ...] = ()
    salt: str = ""

    def epsilon(self, delta: float) -> float:
        """Return the spent epsilon, which is infinite after an answer without noise.

        The "rdp" accountant composes the local steps. The answers' epsilons are added,
        or the answers are composed with the steps as Gaussian mechanisms of noise multiplier 1 / epsilon; the smaller
        total counts.

        Source: Bun and Steinke 2016, arXiv:1605.02065, Proposition 1.4.
        """
        answers = [(epsilon, count) for kind, epsilon, count in self.answers if kind != "leave"]
        if any(epsilon == 0 for epsilon, _ in answers):
            return math.inf
        pure = sum(epsilon * count for epsilon, count in answers)
        gaussian = [(1 / epsilon, 1.0, count) for epsilon, count in answers]
        added = accounting.composed_epsilon(self.steps, delta) + pure
        return min(added, accounting.composed_epsilon((*self.steps, *gaussian), delta)) if gaussian else added

    @property
    def stamp(self) -> Stamp:
        """The number of charges, and the last link of the chain of hashes."""
        return (len(self.chain), self.chain[-1]) if self.chain else (0, "")

    @property
    def closed(self) -> bool:
        """Whether the client has left for good."""
        return self.number_of("leave") > 0

    @staticmethod
    def close(folder: Path) -> None:
        """Close the ledger in a client's ``folder`` with a final charge."""
        with FileLock(private_folder(folder) / "lock"):
            ledger = Ledger.load(folder / LEDGER)
            if not ledger.closed:
                ledger.after_answer("leave", None).save(folder / LEDGER)

    def number_of(self, kind: LedgerEntry) -> int:
        """Return the number of answers of this kind."""
        return sum(count for other, _, count in self.answers if other == kind)

    @staticmethod
    def noise_of(local: LocalSGD, *, in_sum: bool = False) -> float:
        """Return the noise multiplier of a client's local steps, or 0 without DP-SGD.

        If secure sums share the noise, this is one client's noise; with ``in_sum``, it is the total noise of
        ``min_clients`` - 1 other clients.
        """
        rule, steps = accounting.private_rule(local), local.gradient_privacy
        if rule is None or steps is None:
            return 0.0
        if in_sum and rule.noise == "sum":
            return steps.noise_multiplier * math.sqrt((rule.min_clients or 1) - 1)
        return steps.noise_multiplier

    def after_training(
        self, trainings: Sequence[LocalSGD], examples: int, *, copies: int = 1, in_sum: bool = False
    ) -> Self:
        """Return the ledger after one more training round.

        Args:
            copies: the number of copies of the most frequent record (`accounting.of_copies`).
        """
        total = Counter({(noise, rate): count for noise, rate, count in self.steps})
        for local in trainings:
            noise, rate = self.noise_of(local, in_sum=in_sum), local.batch(examples) / examples
            total[accounting.of_copies(noise, rate, copies)] += local.steps_of(examples)
        steps = tuple((noise, rate, count) for (noise, rate), count in sorted(total.items()))
        return self._add_link(replace(self, steps=steps, rounds=self.rounds + 1))

    def after_answer(self, kind: LedgerEntry, epsilon: float | None) -> Self:
        """Return the ledger after one more answer with pure ``epsilon``; None means an answer without noise."""
        total = Counter({(other, cost): count for other, cost, count in self.answers})
        total[kind, epsilon or 0.0] += 1
        return self._add_link(
            replace(self, answers=tuple((other, cost, count) for (other, cost), count in sorted(total.items())))
        )

    def _add_link(self, charged: Self) -> Self:
        salted = replace(charged, salt=secrets.token_hex(16))
        return replace(salted, chain=(*self.chain, salted._link(self.chain)))

    def _link(self, chain: tuple[str, ...]) -> str:
        """Return the hash of these charges after the links of ``chain``."""
        text = json.dumps([chain[-1:], self.salt, self.steps, self.answers, self.rounds])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def save(self, path: Path) -> None:
        """Write the ledger to a private file. The caller must hold the lock of the client's folder."""
        remove_unfinished(private_folder(path.parent))
        write_text(path, json.dumps(vars(self), indent=2) + "\n", mode=PRIVATE)

    @staticmethod
    def load(path: Path) -> "Ledger":
        """Read the ledger in a file; a missing file gives an empty ledger.

        Raises:
            InputError: the file is damaged.
        """
        if not path.exists():
            return Ledger()
        try:
            table = read_json(path)
            if table.keys() != vars(Ledger()).keys():
                raise ValueError(f"its keys are {sorted(table)}")
            ledger = Ledger(**table)
            if ledger.chain[-1:] != (ledger._link(ledger.chain[:-1]),):
                raise ValueError("its last hash does not match its charges")
            return ledger
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: is not a privacy ledger: {error}; restore the newest copy") from error

    @staticmethod
    def newest(folder: Path, stamp: Stamp) -> "Ledger":
        """Read the ledger in a client's ``folder``, and require every charge up to ``stamp``.

        Raises:
            NotAllowedError: the ledger lacks a charge, or is closed.
            InputError: the ledger is damaged.
        """
        path, (count, last) = folder / LEDGER, stamp
        ledger = Ledger.load(path)
        if count and ledger.chain[count - 1 : count] != (last,):
            here = f"others ({ledger.stamp[0]})" if ledger.chain else "none"
            raise NotAllowedError(
                f"{path}: the server has seen {count} charges, and the file has {here}; restore the newest ledger"
            )
        if ledger.closed:
            raise NotAllowedError(f"{path} is closed: the client left for good")
        return ledger


_Question = Literal["train", "choice", "histogram", "vote", "features"]


@settings
class Policy:
    """The questions that a node answers, and their limits over all runs.

    Args:
        delta: the delta of every epsilon in the ledger, for all runs.
        questions: the kinds of questions that the node answers: ``train``, ``choice`` (of one model in rounds with
            several models), ``histogram`` (of losses), ``vote`` (for a coordinator) and ``features`` (training on the
            server's feature map).
        rounds: the largest number of training rounds, or None for no limit.
        min_examples: the smallest number of training examples, after a run's held-out fractions.
        min_batch_size: the smallest batch size. A dishonest network can leak single examples from any batch, and only
            noise limits this leakage.
        min_noise_multiplier: the smallest noise multiplier of DP-SGD in every local training; 0 allows training without
            noise.
        max_grad_norm: the largest clipping norm of DP-SGD.
        sampling: "poisson" requires the batches that the accountant assumes; "any" also allows shuffled batches, for
            which epsilon is an approximation.
        choice_epsilon: the epsilon of a randomised choice among K models. The client sends its true choice with
            probability ``e^epsilon / (e^epsilon + K - 1)``, otherwise a random other model. None sends the true choice,
            with infinite epsilon.
        choice_every: the number of rounds from one choice to the next in a run. Between choices the client keeps its
            model, at no privacy cost.
        histogram_epsilon: the largest epsilon of a histogram's noise; ``inf`` also allows histograms without noise.
        histograms: the largest number of histograms.
        vote_epsilon: the largest epsilon of a vote's randomised response; ``inf`` also allows true votes.
        votes: the largest number of votes.
        classes: the classes of the node's labels. The server's classes must include the node's classes. None uses the
            classes in the node's data.
        columns: the column names of the node's table: ``client``, ``label``, ``inputs`` and optionally ``group``. A run
            must name the same columns, but may use fewer inputs. None uses the run's columns.
        sum_threshold: the smallest fraction of the clients that must help to reveal a secure sum. With a smaller
            fraction, a dishonest server needs fewer helpers to unmask a client.
        trusts_server: whether updates, choices, histograms and votes may have no noise. If false, each answer needs
            noise, even in a secure sum, because the server can subtract the sums of two rounds.
        networks: the networks that may be trained, by name, with their largest numbers of parameters, or None for all
            networks.

    Source of the randomised choice: Kairouz, Oh, Viswanath 2016, arXiv:1407.1338, section 3.2.

    >>> Policy(questions=("train",)).check_answer("vote", 0.5, Ledger())
    Traceback (most recent call last):
    ...
    shoal_flower.messages.NotAllowedError: the policy's 'questions' are 'train'; the server asks for a vote
    """

    delta: Annotated[float, Field(gt=0, le=0.01, strict=True)] = 1e-5
    questions: tuple[_Question, ...] = ("train", "choice", "histogram", "vote", "features")
    rounds: Count | None = None
    min_examples: Positive = 8
    min_batch_size: Positive = 8
    min_noise_multiplier: NonNegativeFloat = 0.0
    max_grad_norm: Annotated[float, Field(gt=0, strict=True)] = math.inf
    sampling: Literal["any", "poisson"] = "any"
    choice_epsilon: PositiveFloat | None = None
    choice_every: Positive = 1
    histogram_epsilon: Annotated[float, Field(gt=0, strict=True)] = 1.0
    histograms: Count = 5
    vote_epsilon: Annotated[float, Field(gt=0, strict=True)] = 1.0
    votes: Count = 5
    classes: tuple[str, ...] | None = None
    columns: Columns | None = None
    sum_threshold: Annotated[float, Field(ge=0.5, lt=1, strict=True)] = 2 / 3
    trusts_server: Annotated[bool, Field(strict=True)] = True
    networks: Mapping[str, Positive] | None = None

    @staticmethod
    def read(path: Path | None) -> "Policy":
        """Read the policy in a TOML file, or return the defaults if ``path`` is None.

        Raises:
            InputError: the file is missing, or has an unknown key or a value that is not allowed.
        """
        return Policy() if path is None else parse(Policy, read_toml(path), str(path))

    def __post_init__(self) -> None:
        own = self.columns
        plain = own is None or (own.inputs is not None and own == replace(own, one_hot=True, impute=None))
        require(plain, "[columns]: 'inputs' is required, and 'one_hot' and 'impute' are not allowed")

    @staticmethod
    def check_keys(table: Mapping[str, object]) -> None:
        """Raise `InputError` if ``columns`` is a list."""
        example = '[columns] client = "clinic", label = "ill", inputs = ["age", "dose"]'
        require(not isinstance(table.get("columns"), list), f"'columns' must be a table such as {example} (got a list)")

    def check_run(self, config: Config, parameters: int, classes: Sequence[str], node: NodeSettings) -> None:
        """Raise `NotAllowedError` unless the network, the classes and the columns of a run are allowed."""
        if config.model.features is not None:
            self.check_question("features", "to train on features of its map")
        name = config.model.name
        if self.networks is not None:
            most = self.networks.get(name, 0)
            _allow(
                parameters <= most,
                f"the policy's 'networks' allow {most:,} parameters of '{name}'; the server asks for {parameters:,}",
            )
        if node.data_path is None:
            return
        own, asked = self.columns, config.data.columns
        _allow(
            math.isinf(node.epsilon_budget) or (self.classes is not None and (own is not None or asked is None)),
            "with 'epsilon-budget' and its own data, a node's policy needs 'classes', and [columns] for a table; "
            "otherwise refusals would reveal values without a charge",
        )
        missing = quote(sorted({*(self.classes or ())} - {*classes}))
        _allow(not missing, f"the policy's 'classes' have {missing}, which the server's classes lack")
        if own is None:
            return
        if asked is None or asked.inputs is None:
            raise NotAllowedError("the policy has [columns]; the server must name a table's inputs")
        for role in ("client", "label", "group"):
            named, given = getattr(own, role), getattr(asked, role)
            fits = given == named or (role == "group" and given is None)
            _allow(fits, f"the policy's 'columns.{role}' is '{named or ''}'; the server names '{given}'")
        more = quote(sorted({*asked.inputs} - {*(own.inputs or ())}))
        _allow(not more, f"the policy's 'columns.inputs' are {quote(own.inputs or ())}; the server also names {more}")

    def check_training(
        self, trainings: Sequence[LocalSGD], models: int, ledger: Ledger, *, in_sum: bool = False
    ) -> None:
        """Check local training runs.

        Raises:
            NotAllowedError: the policy does not allow one of the training runs.
        """
        if models > 1:
            self.check_question("choice", f"for a choice among {models} models")
            self._check_trust(self.choice_epsilon, "a choice without the policy's 'choice_epsilon'")
        _allow(
            self.rounds is None or ledger.rounds < self.rounds,
            f"the policy's 'rounds' is {self.rounds}; the ledger already has {ledger.rounds}",
        )
        for local in trainings:
            rule, noise = accounting.private_rule(local), ledger.noise_of(local, in_sum=in_sum)
            _allow(
                noise >= self.min_noise_multiplier,
                f"the policy's 'min_noise_multiplier' is {self.min_noise_multiplier:g}; the server asks for {noise:g}",
            )
            self._check_trust(noise, "training without DP-SGD noise")
            if rule is None:
                continue
            _allow(
                noise == 0 or rule.max_grad_norm <= self.max_grad_norm,
                f"the policy's 'max_grad_norm' is {self.max_grad_norm:g}; the server asks for {rule.max_grad_norm:g}",
            )

    def check_examples(self, trainings: Sequence[LocalSGD], examples: int) -> None:
        """Raise `NotAllowedError` unless the policy allows ``trainings`` on this number of ``examples``."""
        _allow(
            examples >= self.min_examples,
            f"the policy's 'min_examples' is {self.min_examples}; this run leaves {examples} to train on",
        )
        for local in trainings:
            batch, rule = local.batch(examples), accounting.private_rule(local)
            _allow(
                batch >= self.min_batch_size,
                f"the policy's 'min_batch_size' is {self.min_batch_size}; the server asks for batches of {batch}",
            )
            _allow(
                rule is None or rule.poisson or self.sampling == "any" or batch == examples,
                "the policy's 'sampling' is 'poisson'; the server asks for 'shuffled' batches",
            )

    def check_answer(self, kind: Literal["histogram", "vote"], epsilon: float | None, ledger: Ledger) -> None:
        """Raise `NotAllowedError` if one more histogram or vote with ``epsilon`` (None: no noise) is not allowed."""
        self.check_question(kind, f"for a {kind}")
        largest, most = getattr(self, f"{kind}_epsilon"), getattr(self, f"{kind}s")
        asked = "without noise" if epsilon is None else f"with epsilon {epsilon:g}"
        _allow(
            largest == math.inf or (epsilon is not None and epsilon <= largest),
            f"the policy's '{kind}_epsilon' is {largest:g}; the server asks for a {kind} {asked}",
        )
        self._check_trust(epsilon, f"a {kind} {asked}")
        given = ledger.number_of(kind)
        _allow(given < most, f"the policy's '{kind}s' is {most}, and the ledger has {given}")

    def _check_trust(self, noise: float | None, words: str) -> None:
        _allow(self.trusts_server or bool(noise), f"the policy's 'trusts_server' is false; the server asks for {words}")

    def check_question(self, kind: _Question, words: str) -> None:
        """Raise `NotAllowedError` with ``words`` if the policy does not allow this kind of question."""
        _allow(kind in self.questions, f"the policy's 'questions' are {quote(self.questions)}; the server asks {words}")


def _allow(condition: bool, sentence: str) -> None:
    if not condition:
        raise NotAllowedError(sentence)
