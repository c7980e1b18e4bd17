"""A simulation that goes on from trained models."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from shoal.core.client_rows import ClientRows
from shoal.core.errors import require
from shoal.engine import State

_Kept = TypeVar("_Kept", Tensor, ClientRows)


def started(initial: State, start: State) -> State:
    """``initial`` with the models, risks and number of rounds of ``start``.

    The assignment, who trained which model, and the tensors of the algorithm, the coordinator and the malicious clients
    come from ``start`` where it has them, by name and shape; others, such as those of clients where there are more now,
    stay as in ``initial``.

    Args:
        initial: what the algorithm begins with.
        start: has models of the same network.

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
