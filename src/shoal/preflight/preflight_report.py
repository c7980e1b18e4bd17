"""What a simulation will show of its records, before its first round: the rows, sentences and keys of a preflight."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

import pandas as pd
import torch

from shoal.algorithms import LocalOnly
from shoal.algorithms.wrapper import choice_noise
from shoal.audit.record_table import CLIENT, OUTSIDER, SERVER
from shoal.core.formats import count, decimal, number
from shoal.core.representation import one_line
from shoal.data.content import most_copies
from shoal.defenses import accounting
from shoal.engine import client_trainings
from shoal.metrics.attack_bounds import AttackBound
from shoal.preflight.group_exposure import GroupExposure, predicted_exposure, protection_advice
from shoal.preflight.visible_moves import VisibleMoves

VIEWS = (SERVER, CLIENT, OUTSIDER)

COLUMNS = (
    "view", "group", "verdict", "recognised", "clients", "examples", "rounds", "layer", "inputs", "outputs", "capacity",
    "distinct", "auc.low", "auc.high", "auc.expected",
)  # fmt: skip
"""The columns of `Preflight.views`."""

_ATTACKER = {
    SERVER: "The server, which sees each client's updates",
    CLIENT: "A client, which sees the models of every round",
    OUTSIDER: "An outsider who has the initial and the final models",
}
"""Who sees what, in words."""

_VIEW_NAMES = {SERVER: "the server", CLIENT: "a client", OUTSIDER: "an outsider"}


@dataclass(frozen=True, eq=False)
class Preflight:
    """Which records each view could recognise by the moves of models, before anything is trained.

    It says nothing of other attacks, such as those that query the released models.

    Args:
        views: one row per view and group, with `COLUMNS`. "verdict": as `exposure_rule.Exposure`, of the client
            or sum that shows most; "recognised": the share of the group's records that are; "clients" and "examples":
            behind a move; "rounds": from which on; the layer that gives most away, and its numbers; "auc.low" and
            "auc.high": what the verdict allows for the AUC of the span attacks; "auc.expected": what is predicted, NaN
            where nothing is.
        answers: on each view, in few words.
        sentences: on each view, a sentence a group, or one of all groups.
        changes: what would change it, by the group that shows most and the view.
        assumptions: of the rule, and the sizes of clusters.
        epsilons: of a record after all rounds, with DP-SGD: for every view, "", or by view, with noise in the sum.
        delta: of these.
        bounds: of any attack on a record, of the same views.
        choice: whether they cover a client's choice of model.
    """

    views: pd.DataFrame
    answers: Mapping[str, str]
    sentences: Mapping[str, Sequence[str]]
    changes: Mapping[str, Sequence[str]]
    assumptions: Sequence[str]
    epsilons: Mapping[str, float] = field(default_factory=dict)
    delta: float = 0.0
    bounds: Mapping[str, AttackBound] = field(default_factory=dict)
    choice: bool = False
    __repr__ = one_line

    def flat(self) -> dict[str, float | str]:
        """The keys and values of ``shoal preflight --json``; of these gates limit ``views.<view>.<group>.auc.high``."""
        flat: dict[str, float | str] = {}
        for row in self.views.to_dict("records"):
            key = f"views.{row['view']}.{row['group']}"
            flat |= {f"{key}.{name}": row[name] for name in COLUMNS[2:] if row[name] == row[name]}
        known = {view: epsilon for view, epsilon in self.epsilons.items() if isfinite(epsilon)}
        flat |= {f"epsilon.{view}".removesuffix("."): epsilon for view, epsilon in known.items()}
        flat |= {"delta": self.delta} if known else {}
        return flat

    def __str__(self) -> str:
        return "\n\n".join("\n".join([title, *(f"- {line}" for line in lines)]) for title, lines in self.parts())

    def parts(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Titles and their sentences."""
        answers = [f"{_ATTACKER[view]}: {answer}" for view, answer in self.answers.items()]
        yield "Who could recognise a record that was trained on", answers
        yield from ((f"Why: {_VIEW_NAMES[view]}", said) for view, said in self.sentences.items())
        if self.epsilons:
            said = [self._promise_words(view, epsilon) for view, epsilon in self.epsilons.items()]
            yield "What DP-SGD promises", said if self.choice else [*said, "A client's choice of model is not covered."]
        yield from ((f"What would change it: {of}", said) for of, said in self.changes.items() if said)
        yield "What this assumes", self.assumptions

    def _promise_words(self, view: str, epsilon: float) -> str:
        """What an epsilon says of membership, in words."""
        accuracy, auc = self.bounds[view]
        bound = (
            f"no attack on a record has a balanced accuracy above {decimal(accuracy)} or an AUC above {decimal(auc)}"
        )
        if accuracy > 0.995:
            bound = "that bounds no attack noticeably"
        whose = f"of view '{view}'" if view else "of every view"
        return (
            f"Epsilon {number(epsilon)} of a record at delta {number(self.delta)} after all rounds, {whose}: {bound}."
        )


def preflight(seen: VisibleMoves, *, first_round: int = 1, steered: bool = False) -> Preflight:
    """The rule of exposure on every view and group.

    Args:
        seen: what each view will see.
        first_round: the number of the first round.
        steered: whether a coordinator steers defences.

    Example:
        >>> import torch, shoal
        >>> draw = shoal.Stream(0).generator()
        >>> clients = [(torch.randn(4, 50, generator=draw), [0, 1, 0, 1]) for _ in range(5)]
        >>> federation = shoal.Federation.from_tensors(clients, test=(torch.randn(50, 50, generator=draw), [0, 1] * 25))
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=50, classes=2), hidden=16)
        >>> report = shoal.Simulation(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=5).preflight()
        >>> report.views[["view", "verdict", "rounds", "capacity", "distinct"]].to_numpy().tolist()
        [['server', 'recognised', 1, 16, 4], ['client', 'recognised', 2, 32, 20], ['outsider', 'between', 1, 16, 20]]
    """
    groups = seen.federation.groups_with_clients
    rows, answers, said, changes = [], dict[str, str](), dict[str, list[str]](), dict[str, list[str]]()
    for view in VIEWS:
        if not seen.layers:
            answers[view] = seen.nothing
            continue
        found = [predicted_exposure(seen, view, group) for group in groups]
        rows += [one.row() for one in found]
        answers[view] = "; ".join(_together(found, lambda one: one.answer)) + "."
        said[view] = _together(found, GroupExposure.sentence)
        if view != OUTSIDER:
            worst = max(found, key=lambda one: (one.exposure.auc, one.exposure.expected))
            changes[f"{worst.group}, to {_VIEW_NAMES[view]}"] = [*protection_advice(seen, worst)]
    views, choice = pd.DataFrame(rows, columns=[*COLUMNS]), choice_noise(seen.algorithm)
    epsilons, delta, bounds = _promise(seen, choice, first_round)
    assumptions = _assumptions(seen, steered)
    return Preflight(views, answers, said, changes, assumptions, epsilons, delta, bounds, choice is not None)


def _together(found: Sequence[GroupExposure], said: Callable[[GroupExposure], str]) -> list[str]:
    """What is said of groups, once for all of which the same is said; of all groups, without their names."""
    groups: dict[str, list[str]] = defaultdict(list)
    for one in found:
        groups[said(one)].append(one.group)
    if len(groups) == 1:
        return [*groups]
    return [f"{', '.join(named)}: {sentence}" for sentence, named in groups.items()]


def _promise(
    seen: VisibleMoves, choice: float | None, first_round: int
) -> tuple[dict[str, float], float, Mapping[str, AttackBound]]:
    """The epsilons of a record, the largest of all clients, their delta, and what they limit; none without DP-SGD."""
    rule = accounting.private_rule(seen.local)
    if rule is None:
        return {}, 0.0, {}
    rounds = max(1, round(seen.share_of_clients * seen.rounds))
    everybody = torch.arange(len(seen.federation))
    if rule.noise == "sum":
        attended, copies = torch.full_like(everybody, rounds), most_copies(seen.federation.clients)
        by_view = accounting.epsilons_by_view(rule, attended, choice, copies=copies)
        largest = {view: float(epsilons.max()) for view, epsilons in by_view.items()}
        return largest, rule.delta, {**accounting.bounds_by_view(rule, attended, choice, copies=copies)}
    local = client_trainings(seen.algorithm, seen.setup.local)
    local = local.changed(lambda local: replace(seen.setup, local=local).first_local())
    cohorts = [everybody] * rounds
    private = accounting.PrivateTrainings(seen.federation, cohorts, local, rule, first_round, choice)
    return {"": float(private.epsilons().max())}, rule.delta, {"": private.bound()}


def _assumptions(seen: VisibleMoves, steered: bool) -> list[str]:
    """What the rule takes for granted."""
    federation = seen.federation
    named = {federation.groups[group]: seen.clusters(group) for group in federation.groups_with_clients}
    sums = ", ".join(f"{count(clients)} of {group}" for group, clients in named.items())
    lines = []
    if not seen.has(LocalOnly):
        lines.append(f"Clients that train one model, where clusters find the groups: {sums}.")
    if seen.share_of_clients < 1:
        lines.append("Clients take part by chance, so examples behind a move and rounds are means.")
    if seen.copies == inf:
        lines.append("The attacker knows the family of transforms, and searches it for each record.")
    if steered:
        lines.append("Defences that a coordinator steers are left out.")
    lines.append("The attacker knows the learning rate and subtracts weight decay, momentum and control variates.")
    lines.append("An AUC is predicted for an attacker who knows a record's label, by gradients of an initial model.")
    lines.append("Only what moves show is judged: attacks that query released models are not.")
    return lines
