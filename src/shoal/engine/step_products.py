"""The matrix products and convolutions of a local step: their operations, and the time that they alone would take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from shoal.engine.machine_speed import side_by_side
from shoal.models.model import Model

_SECONDS = 0.1
"""Of one thread's work while its rate is measured, more or less."""

_TURNS = 7


@dataclass(frozen=True)
class StepProducts:
    """The products of one step on a batch of one client, forward and backward, as PyTorch calls them.

    Args:
        operations: additions and multiplications, as `torch.utils.flop_counter` counts them.
        calls: what was called, with its arguments.
    """

    operations: int
    calls: Sequence[tuple[Any, Sequence[Any], Mapping[str, Any]]]

    @staticmethod
    def of_step(model: Model, x: Tensor, y: Tensor, dtype: torch.dtype) -> "StepProducts":
        """Those of a network on inputs x (B, ...) with labels y, both where they are trained on."""
        network = model.network().eval().to(x.device, dtype)
        parameters = [p for p in network.parameters() if p.requires_grad]
        with torch.no_grad():  # A network's first batch may be tried in another order of its images.
            network(x)
        with _Recorder() as recorder:
            loss = model.loss(network(x).float(), y).mean()
            torch.autograd.grad(loss, parameters, allow_unused=True)
        return StepProducts(recorder.operations, recorder.calls)

    def rate(self, threads: int, clients: int = 1) -> float:
        """Operations a second, where each of so many threads does nothing but these products.

        ``clients`` whose batches are one batched product, as backend "vmap" has them; 1: products of one client.
        """
        device = next(arg.device for _, args, _ in self.calls for arg in args if isinstance(arg, Tensor))
        works = [_batched(function, args, kwargs, clients) for function, args, kwargs in self.calls]

        def all_of_them() -> None:
            with torch.no_grad():
                for work in works:
                    work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        once = side_by_side(all_of_them, 1, turns=1)
        repeats = max(1, round(_SECONDS / _TURNS / max(once, 1e-6)))
        turns = _TURNS if once < _SECONDS else 1

        def repeated() -> None:
            for _ in range(repeats):
                all_of_them()

        return threads * clients * self.operations * repeats / side_by_side(repeated, threads, turns)


class _Recorder(TorchDispatchMode):
    """Keeps what is called of the operations that PyTorch can count."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.calls = 0, list[tuple[Any, Sequence[Any], Mapping[str, Any]]]()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.operations += int(count(*args, **kwargs, out_val=out))
            self.calls.append((func, args, kwargs))
        return out


def _batched(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], clients: int) -> Callable[[], object]:  # noqa: ANN401
    """A call, or the batched product of so many clients in its place."""
    matrices = args[-2:]
    product = function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    if clients == 1 or not product:
        return lambda: function(*args, **kwargs)
    a, b = (matrix[None].repeat(clients, 1, 1) for matrix in matrices)
    return lambda: torch.bmm(a, b)
