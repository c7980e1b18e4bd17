"""A simulation that goes on from trained models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.core.client_vectors import ClientVectors
from shoal.core.errors import InputError, require
from shoal.core.representation import one_line
from shoal.data.content import comparable_hashes
from shoal.engine import Engine, State
from shoal.models import Model
from shoal.simulation.round_metrics import Row

if TYPE_CHECKING:
    from shoal.simulation.simulation import Simulation

_Kept = TypeVar("_Kept", Tensor, ClientVectors)


@dataclass(frozen=True, eq=False)
class Start:
    """Trained models that a simulation goes on from, and how they came about; `Result.start` gives one.

    Args:
        state: after the last round. Its models are those of ``models`` once they are fitted to a network.
        models: the tensors of each model by name; empty once they are fitted.
        simulation: that they came out of; None: it is not known.
        engine: that computed it, perhaps closed; None like ``simulation``.
        rows: of its rounds.csv.
        public: whether, by the user's word, no example of the clients had a part in the models, so that who attacks
            may know them. Nothing but models and risks is taken over then.
    """

    state: State
    models: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    simulation: "Simulation | None" = None
    engine: Engine | None = None
    rows: Sequence[Row] = ()
    public: bool = False
    __repr__ = one_line

    def fitted(self, model: Model) -> "Start":
        """The start with its models as parameter vectors (K, P) of ``model``.

        Raises:
            InputError: they are models of another network.
        """
        if not self.models:
            return self
        network = model.structure()
        saved = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        needed = {slot.name: slot.shape for slot in model.layout.slots} | saved
        for tensors in self.models.values():
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            for name in {**needed, **shapes}:
                has, needs = shapes.get(name, "no such tensor"), needed.get(name, "no such tensor")
                require(
                    has == needs or (name not in shapes and name not in saved),
                    f"'start' has models of another network: for '{name}' they have {has}, but the model has {needs}",
                )
        for tensors in self.models.values():
            model.require_same_frozen(tensors, "'start' has models of another network")
        buffers = dict(network.named_buffers())
        rows = torch.stack([model.layout.pack({**buffers, **tensors}) for tensors in self.models.values()])
        state = replace(self.state, models=rows)
        if self.public:
            # The models alone: whose examples others trained on says nothing of these clients.
            state = State(state.round, rows, state.risks, torch.empty(0, dtype=torch.int64))
        return replace(self, state=state, models={})


def require_known(simulation: "Simulation") -> None:
    """Refuse a simulation whose reference federations cannot begin before its start.

    Raises:
        InputError: it starts from models that may have been trained on the clients' examples, in a way that is not
            known; or it is not known which examples a model was trained on, since not all clients take part in a round
            and those of the start had other examples.
    """
    start = simulation.start
    if start is None or start.public:
        return
    how = "train all rounds in one run, or give start(public=True) if no example of these clients had a part in it"
    if start.simulation is None:
        raise InputError(
            "reference federations must begin before 'start', and a directory does not say how it was trained; give "
            f"the result itself, {how}"
        )
    require(
        start.simulation.round_attack is None and start.simulation.malicious_clients is None,
        "reference federations must begin before 'start', which had a property attack or malicious clients and cannot "
        "be replayed",
    )
    clients = [run.federation.clients for run in (simulation, start.simulation)]
    mine, theirs = comparable_hashes(*clients)
    require(
        bool(np.isin(mine, theirs).any()),
        "reference federations must begin before 'start', and none of the clients' examples is among those that it was "
        f"trained on, where they may stand in another form; {how}",
    )
    of_mine, of_theirs = (shards.owners().numpy() for shards in clients)
    require(
        simulation.participation == 1 or (np.array_equal(mine, theirs) and np.array_equal(of_mine, of_theirs)),
        "reference federations of a run that goes on from 'start' with other clients or examples need participation = "
        f"1; got {simulation.participation:g}, and who trained in 'start' alone cannot be told",
    )
    require_known(start.simulation)


def started(initial: State, start: State) -> State:
    """``initial`` with the models, risks and number of rounds of ``start``.

    The assignment, who trained which model, and the tensors of the algorithm, the coordinator and the malicious clients
    come from ``start`` where it has them, by name and shape; others, such as those of clients where there are more now,
    stay as in ``initial``.

    Raises:
        InputError: another number of models.
    """
    had, begins = len(start.models), len(initial.models)
    require(
        had == begins,
        f"'start' has {had} model{'s' if had > 1 else ''}, but the algorithm begins with {begins}; "
        "start from as many as it has clusters",
    )
    return replace(
        initial,
        round=start.round,
        models=start.models.to(initial.models),
        risks=start.risks,
        risk_intervals=start.risk_intervals,
        assignment=start.assignment if start.assignment.shape == initial.assignment.shape else initial.assignment,
        server=_kept(initial.server, start.server),
        clients=_kept(initial.clients, start.clients),
        personal=_kept(initial.personal, start.personal),
        directives=_kept(initial.directives, start.directives),
        adversary=_kept(initial.adversary, start.adversary),
        control=_kept(initial.control, start.control),
        # Who trained a model before, and not since, still is its member.
        trained=start.trained if start.trained.shape == initial.trained.shape else initial.trained,
    )


def _kept(initial: Mapping[str, _Kept], start: Mapping[str, _Kept]) -> dict[str, _Kept]:
    return {
        name: start[name] if name in start and start[name].shape == tensor.shape else tensor
        for name, tensor in initial.items()
    }
