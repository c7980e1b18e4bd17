"""A node's own policy: what a server may ask of it, whatever the run's configuration says.

A server that nobody trusts writes the configuration, the models and the questions. The node's owner writes this file,
``policy = "/etc/shoal/policy.toml"`` in its ``--node-config``; what it does not allow is refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from shoal.config.schema import Config
from shoal.config.toml_files import parse, read_toml
from shoal.core.errors import quote, require
from shoal.core.settings import Count, NonNegativeFloat, Positive, PositiveFloat, settings
from shoal.data import Columns
from shoal.defenses import accounting
from shoal.engine import LocalSGD
from shoal_flower.client.ledger import Ledger
from shoal_flower.flower_config import NodeSettings
from shoal_flower.messages import NotAllowedError

_Question = Literal["train", "choice", "histogram", "vote", "features"]


@settings
class Policy:
    """What a node answers. Without a file it has the defaults below.

    Args:
        delta: of every epsilon of the ledger, which the run's configuration does not change.
        questions: that are answered: to ``train``; to say the ``choice`` among several models (without it, a round that
            offers more than one is refused); a ``histogram`` of losses; a ``vote`` for a coordinator; to train on
            ``features`` by a map of the server's.
        rounds: most rounds of training, in all runs; left out: any number.
        min_examples: fewest training examples, which the run's fractions of data held out could make few.
        min_batch_size: fewest examples in a batch. A model can be made so that one example alone moves it: this bounds
            what an honest network tells, noise bounds what any tells.
        min_noise_multiplier: least noise of DP-SGD in every local training; 0: any, or none.
        max_grad_norm: largest clipping norm of DP-SGD.
        sampling: "poisson": batches must be what the accountant assumes; "any": shuffled ones too, for which epsilon is
            an approximation.
        choice_epsilon: the choice among K models is randomised at this node: true with probability
            ``e^epsilon / (e^epsilon + K - 1)``, otherwise any other. Left out: true choices, whose epsilon is infinite.
        choice_every: rounds from one choice to the next in a run, counted by this node's ledger; between them the
            client stays with its model, which costs nothing.
        histogram_epsilon: largest epsilon of a histogram's noise; ``inf``: without noise too, at an infinite epsilon.
        histograms: most histograms, in all runs.
        vote_epsilon: largest epsilon of a vote's randomised response; ``inf``: true votes too.
        votes: most votes, in all runs.
        classes: of the node's labels, all of which the server must have; left out: those in its data.
        columns: ``client``, ``label``, ``inputs`` and perhaps ``group`` of the node's table; a run names the same, and
            some or all inputs. Left out: what the run says.
        sum_threshold: least share of the clients whose help opens a secure sum. A server that opens sums with fewer
            unmasks a client with the help of fewer clients.
        trusts_server: whether the node gives the server updates, choices, histograms and votes without noise; false:
            also in a secure sum each of them needs noise, since sums of several rounds can be subtracted.
        networks: a table of the networks that may be trained, by name, and their largest number of parameters; left
            out: all.

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
        """The policy in a TOML file; the defaults where ``path`` is None.

        Raises:
            InputError: the file is missing, or has an unknown key or a value that is not allowed.
        """
        return Policy() if path is None else parse(Policy, read_toml(path), str(path))

    def __post_init__(self) -> None:
        own = self.columns
        plain = own is None or (own.inputs is not None and own == replace(own, one_hot=False, impute=None))
        require(plain, "[columns]: 'inputs' must be named; words and empty cells need no key")

    @staticmethod
    def check_keys(table: Mapping[str, object]) -> None:
        """Raise `InputError` where ``columns`` are a list."""
        example = '[columns] client = "clinic", label = "ill", inputs = ["age", "dose"]'
        require(not isinstance(table.get("columns"), list), f"'columns' must be a table such as {example}; got a list")

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
            "a node with 'epsilon-budget' and its own data needs 'classes' of its labels in its policy, and [columns] "
            "of a table: otherwise what it refuses tells the server values, and nothing is charged",
        )
        missing = quote(sorted({*(self.classes or ())} - {*classes}))
        _allow(not missing, f"the policy's 'classes' have {missing}, which the server's classes have not")
        if own is None:
            return
        if asked is None or asked.inputs is None:
            raise NotAllowedError("the policy has [columns]; the server names no inputs, which is all, or no table")
        for role in ("client", "label", "group"):
            named, given = getattr(own, role), getattr(asked, role)
            fits = given == named or (role == "group" and given is None)
            _allow(fits, f"the policy's 'columns.{role}' is '{named or ''}'; the server names '{given}'")
        more = quote(sorted({*asked.inputs} - {*(own.inputs or ())}))
        _allow(not more, f"the policy's 'columns.inputs' are {quote(own.inputs or ())}; the server also names {more}")

    def check_training(
        self, trainings: Sequence[LocalSGD], models: int, ledger: Ledger, *, in_sum: bool = False
    ) -> None:
        """Raise `NotAllowedError` unless a round of these local ``trainings`` on one of so many models is allowed.

        ``in_sum``: what is trained leaves the node in a secure sum alone (`Ledger.noise_of`).
        """
        if models > 1:
            self.check_question("choice", f"for a choice among {models} models")
            self._check_trust(self.choice_epsilon, "a choice without the policy's 'choice_epsilon'")
        _allow(
            self.rounds is None or ledger.rounds < self.rounds,
            f"the policy's 'rounds' is {self.rounds}, which the ledger has",
        )
        for local in trainings:
            rule, noise = accounting.private_rule(local), ledger.noise_of(local, in_sum=in_sum)
            _allow(
                noise >= self.min_noise_multiplier,
                f"the policy's 'min_noise_multiplier' is {self.min_noise_multiplier:g}; the server asks for {noise:g}",
            )
            self._check_trust(noise, "training without noise of DP-SGD, in shares or the client's own")
            if rule is None:
                continue
            _allow(
                noise == 0 or rule.max_grad_norm <= self.max_grad_norm,
                f"the policy's 'max_grad_norm' is {self.max_grad_norm:g}; the server asks for {rule.max_grad_norm:g}",
            )

    def check_examples(self, trainings: Sequence[LocalSGD], examples: int) -> None:
        """Raise `NotAllowedError` unless these local ``trainings`` may be on so many examples."""
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
        """Raise `NotAllowedError` unless one more histogram or vote of that ``epsilon`` (None: no noise) is allowed."""
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
        """Raise `NotAllowedError` where there is no ``noise`` and the server is not trusted."""
        _allow(self.trusts_server or bool(noise), f"the policy's 'trusts_server' is false; the server asks for {words}")

    def check_question(self, kind: _Question, words: str) -> None:
        """Raise `NotAllowedError` unless a kind of question is answered; ``words`` say what the server asks."""
        _allow(kind in self.questions, f"the policy's 'questions' are {quote(self.questions)}; the server asks {words}")


def _allow(condition: bool, sentence: str) -> None:
    """Raise `NotAllowedError` with ``sentence`` unless ``condition`` holds."""
    if not condition:
        raise NotAllowedError(sentence)
