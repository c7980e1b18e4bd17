"""The engine, which trains many owners of data and evaluates models."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from shoal.core.errors import InputError, require, require_instance
from shoal.core.formats import shorten
from shoal.core.processes import cores
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation
from shoal.data.shards import GroupedExamples, Shards, to_channels_first, to_channels_last, to_compute_dtype
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.backends.gradient_clipping import batch_of_gradients, example_gradients
from shoal.engine.backends.loop_backend import LoopBackend
from shoal.engine.backends.selection import Backend, check_backend, loop_reason, resolve_backend
from shoal.engine.backends.vmap_backend import VmapBackend
from shoal.engine.local_sgd import LinearTerm, LocalRandomness, LocalSGD, StepRule, require_plain_sgd
from shoal.engine.worker_pool import RoundClock, WorkerPool
from shoal.models.model import Model

Precision = Literal["fp32", "bf16"]
"""The number format of computations. Parameters are always float32."""

MAX_THREADS = 1024
"""The largest number of threads, because operating systems may refuse more without an error message."""

Threads = Annotated[int, Field(ge=1, le=MAX_THREADS, strict=True)]


def _device(name: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError("'cpu', 'cuda' or a numbered GPU such as 'cuda:1'")
    return name


Device = Annotated[str, AfterValidator(_device)]
"""A device's name in PyTorch."""


@settings
class _Options:
    """The validated options of an engine."""

    device: Device
    threads: Threads | None
    precision: Precision


_EVALUATED = {"loop": 256, "vmap": 2048}
"""The number of examples per evaluation batch, by backend. It is fixed because it may change results' last bits."""

_LARGE = 3_072
"""The number of elements per example above which evaluation batches of the loop are a quarter as large."""

_MANY = 10_000_000
"""The number of parameters, including frozen ones, above which the loop evaluates 8 examples at once to save memory."""

_TOGETHER = 64
"""The number of batches per part of `Engine.outputs_in_parts`."""

_Result = TypeVar("_Result")
_Examples = TypeVar("_Examples", Shards, GroupedExamples)


class DivergenceError(InputError):
    """The error of local training whose parameters are no longer finite.

    Attributes:
        owner: the position of the owner whose training diverged.
    """

    def __init__(self, owner: int, sentence: str) -> None:
        super().__init__(sentence)
        self.owner = owner


def gather_params(params: Tensor, index: Tensor) -> Tensor:
    """Return a new tensor (u, P) of rows of ``params`` (S, P).

    A 1-d ``index`` (u,) selects rows. A 2-d ``index`` (u, S) contains the weights of u mixtures of rows.
    """
    return params[index] if index.dim() == 1 else index.to(params) @ params


def _rows_of_four(params: Tensor, index: Tensor) -> Tensor:
    """Return the rows of `gather_params`, each aligned to 16 bytes (see `dense_network.begin_at_fours`)."""
    rows = params.new_empty(len(index), -(-params.shape[1] // 4) * 4)[:, : params.shape[1]]
    if index.dim() == 1:
        # Three times as fast as indexing.
        return torch.index_select(params, 0, index, out=rows)
    return rows.copy_(gather_params(params, index))


class Engine:
    """A device and worker threads that train and evaluate one model's parameter vectors.

    Results do not depend on the number of threads. Use the engine as a context manager, or call `close`.

    Args:
        model: the model to train and evaluate.
        device: "cpu" or "cuda".
        threads: the number of worker threads on the CPU; ``None`` uses one per available core.
        precision: the number format of computations, "fp32" or "bf16". Parameters are always float32.
        backend: "loop" or "vmap"; ``None`` chooses by `selection.prefers_vmap`. With "vmap", the engine still uses the
            loop for local training runs that vmap cannot perform (`selection.loop_reason`).

    Raises:
        InputError: PyTorch finds no such CUDA device, or vmap cannot train the model's batch norm, dropout or recurrent
            layers.

    Example:
        >>> import torch, shoal
        >>> federation = shoal.Federation.from_tensors([([[-1.0], [1.0]], [0, 1]), ([[2.0]], [0])], test=([[0.0]], [0]))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> models = torch.stack([model.init(shoal.Stream(seed)) for seed in range(3)])
        >>> with shoal.Engine(model) as engine:
        ...     losses = engine.losses(models, federation.clients)
        ...
        >>> losses.shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        model: Model,
        *,
        device: str | torch.device = "cpu",
        threads: int | None = None,
        precision: Precision = "fp32",
        backend: Backend | None = None,
    ) -> None:
        require_instance("model", model, Model, "such as Model(MyNetwork) or the result of create_model")
        options = _Options(str(device), threads, precision)
        self.device = torch.device(options.device)
        if self.device.type == "cuda":
            refusal, count = f"device '{device}' cannot be used", torch.cuda.device_count()
            require(torch.cuda.is_available(), f"{refusal}: PyTorch finds no CUDA device; use 'cpu'")
            index = self.device.index or 0
            require(index < count, f"{refusal}: PyTorch finds only cuda:0 to cuda:{count - 1}")
        check_backend(backend, model)
        self.model = model
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        threads = min(cores(), MAX_THREADS) if options.threads is None else options.threads
        self.threads = threads if self.device.type == "cpu" else 1
        self.backend: Backend = backend if backend is not None else resolve_backend(model)
        self._parameters = model.layout.size + sum(tensor.numel() for tensor in model.frozen.values())
        self._settings: dict[str, Any] = {"threads": threads, "precision": precision, "backend": backend}
        self._trainer = VmapBackend(model, self.device, self.dtype) if self.backend == "vmap" else LoopBackend()
        self._networks = threading.local()
        self._pool = WorkerPool(self.threads)

    def __repr__(self) -> str:
        precision = str(self.dtype).removeprefix("torch.")
        return shorten(f"Engine({self.model}, {self.device}, {self.threads} threads, {precision}, {self.backend})")

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reopened(self, threads: int | None = None) -> "Engine":
        """Return a new engine with this engine's settings and at most ``threads`` threads."""
        settings = {"device": self.device, **self._settings}
        if threads is not None:
            settings["threads"] = min(threads, settings["threads"])
        return Engine(self.model, **settings)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process needs its own threads.
        return partial(Engine, device=self.device, **self._settings), (self.model,)

    def close(self) -> None:
        """End the worker threads, drop waiting work and restore PyTorch's global settings."""
        self._pool.close()

    def prepare(self, federation: Federation) -> Federation:
        """Return the federation with inputs stored in the engine's fastest format, which changes no result.

        Memory-mapped inputs (`Shards.memory_mapped`) are converted batch by batch when the engine reads them.
        """

        def stored(x: Tensor) -> Tensor:
            return to_channels_first(to_compute_dtype(to_channels_last(x), self.dtype, self.device).contiguous())

        def prepared(examples: _Examples) -> _Examples:
            if isinstance(examples, Shards) and examples.memory_mapped:
                return examples
            return replace(examples, x=stored(examples.x), y=examples.y.to(self.device))

        return replace(
            federation,
            clients=prepared(federation.clients),
            holdout=prepared(federation.holdout),
            shadow=prepared(federation.shadow),
            test=prepared(federation.test),
        )

    def train(
        self,
        starts: Tensor,
        index: Tensor,
        shards: Shards,
        randomness: LocalRandomness,
        local: LocalSGD,
        term: LinearTerm | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Train every owner, and yield results in a fixed order while other owners still train.

        Args:
            starts: the initial parameter vectors, (S, P).
            index: the index of each owner's initial vector, (n,) int64; or the weights of a mixture of initial vectors,
                (n, S) float.
            shards: the n owners' examples.
            randomness: the owners' randomness, from `LocalSGD.randomness`.
            local: the local training, at the round's learning rate (`LocalSGD.at_round`).
            term: a linear term that is added to every gradient; ``None`` adds nothing.

        Yields:
            Positions of owners, (u,) int64, and their trained parameters, (u, P). Each owner is yielded exactly once.

        Raises:
            DivergenceError: a trained parameter is not finite.
        """
        yield from self.train_into(lambda owners, ends: (owners, ends), starts, index, shards, randomness, local, term)

    def train_into(
        self,
        finish: Callable[[Tensor, Tensor], _Result],
        starts: Tensor,
        index: Tensor,
        shards: Shards,
        randomness: LocalRandomness,
        local: LocalSGD,
        term: LinearTerm | None = None,
        *,
        then: Sequence[tuple[LocalRandomness, LocalSGD]] = (),
        rule: StepRule | None = None,
        clock: RoundClock | None = None,
    ) -> Iterator[_Result]:
        """Train as `train` does, and yield ``finish(owners, ends)``, computed on the training threads.

        ``then`` lists further local training runs; each starts where the previous one ended. A ``rule`` replaces the
        gradient step, and changes the shapes: ``starts`` is (S, R), and a result is (u, R). The ``clock`` measures the
        threads' training time.
        """
        clock = RoundClock() if clock is None else clock
        if rule is not None:
            require_plain_sgd(local, "a step rule")
        trainer = self._trainer_for(local)

        def work(owners: Tensor) -> _Result:
            with clock.part("local_training"):
                ends = _rows_of_four(starts, index[owners]).to(self.device)
                for drawn, phase in ((randomness, local), *then):
                    trainer.train(self._bound(), ends, shards, owners, drawn, phase, term, rule=rule)
                self.model.require_frozen()
                # The sum is finite if all its terms are, except for numbers near the limits of float32.
                broken = ~torch.isfinite(ends.sum(dim=1)).cpu()
            if bool(broken.any()):
                owner = int(owners[broken][0])
                raise DivergenceError(
                    owner, f"the loss of owner {owner} became NaN at learning rate {local.learning_rate:g}"
                )
            return finish(owners, ends)

        yield from self._pool.in_order(work, trainer.units(shards, local))

    def _trainer_for(self, local: LocalSGD) -> LoopBackend | VmapBackend:
        """Return the backend for ``local``, which is the loop if vmap cannot train with these settings."""
        if isinstance(self._trainer, LoopBackend) or loop_reason(local, dense=self._trainer.dense is not None) is None:
            return self._trainer
        if local.optimizer is not None:  # Directives never set an optimizer.
            check_backend(self._settings["backend"], self.model, local)
        return LoopBackend()

    def train_other_model(
        self, model: Model, row: Tensor, shards: Shards, randomness: LocalRandomness, local: LocalSGD
    ) -> Tensor:
        """Return parameters (P',) of ``model``, trained from ``row`` (P',) on the one owner's ``shards``."""
        rows, owner = row[None].to(self.device, copy=True), torch.zeros(1, dtype=torch.int64)
        LoopBackend().train(BoundNetwork(model, self.device, self.dtype), rows, shards, owner, randomness, local)
        return rows[0].cpu()

    def train_centrally(
        self, model: Model, row: Tensor, x: Tensor, y: Tensor, local: LocalSGD, stream: Stream
    ) -> Tensor:
        """Return parameters (P',) of ``model``, trained from ``row`` (P',) on the server's examples x and y."""
        shards = Shards.from_contiguous(x, y, torch.tensor([len(x)]))
        randomness = local.randomness(shards, torch.zeros(1, dtype=torch.int64), stream)
        return self.train_other_model(model, row, shards, randomness, local)

    def outputs(self, row: Tensor, x: Tensor, indices: Tensor | None = None) -> Tensor:
        """Return the float32 outputs (m, C) of the model ``row`` (P,) for inputs x (M, ...), in evaluation mode.

        ``indices`` (m,) selects inputs; ``None`` selects all inputs.
        """
        if self._batches(x, indices):
            return torch.cat(list(self._evaluate_batches(row[None], x, indices, lambda outputs, _: outputs)))
        # Without examples, one example or zeros give the shape.
        example = x[:1] if len(x) else x.new_zeros(1, *x.shape[1:])
        return self.outputs(row, example)[:0]

    def outputs_in_parts(self, row: Tensor, x: Tensor, indices: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield consecutive slices of ``indices`` with their outputs, which saves memory."""
        done, batches = 0, self._evaluate_batches(row[None], x, indices, lambda outputs, _: outputs)
        while part := list(islice(batches, _TOGETHER)):
            outputs = torch.cat(part)
            yield slice(done, done + len(outputs)), outputs
            done += len(outputs)

    def losses(self, rows: Tensor, shards: Shards) -> Tensor:
        """Return the mean losses (n, K) float64 of K models, ``rows`` (K, P), on each of n owners' examples.

        Every owner needs at least one example.
        """
        total, owners = torch.zeros(len(rows), len(shards), dtype=torch.float64), shards.owners()
        for k, entries, losses in self._loss_batches(rows, shards):
            # Adding losses batch by batch saves memory.
            total[k].index_add_(0, owners[entries], losses)
        return (total / shards.sizes).T.contiguous()

    def example_losses(self, rows: Tensor, shards: Shards) -> Tensor:
        """Return the losses (m, K) float64 of K models, ``rows`` (K, P), on each of the m examples of ``shards``."""
        matrix = torch.empty(len(rows), len(shards.indices), dtype=torch.float64)
        for k, entries, losses in self._loss_batches(rows, shards):
            matrix[k, entries] = losses
        return matrix.T.contiguous()

    def _loss_batches(self, rows: Tensor, shards: Shards) -> Iterator[tuple[int, slice, Tensor]]:
        """Yield the losses batch by batch: the model's index, the entries, and their losses (B,) float64."""
        indices: Tensor | None = shards.indices.to(shards.y.device)
        if torch.equal(indices, torch.arange(len(shards.x), device=indices.device)):
            indices = None  # Slices need no copies.
        y = shards.y if indices is None else shards.y[indices]

        def loss(outputs: Tensor, entries: slice) -> Tensor:
            return self.model.loss(outputs, y[entries].to(outputs.device)).double()

        tasks = [(k, entries) for k in range(len(rows)) for entries in self._batches(shards.x, indices)]
        batches = self._evaluate_batches(rows, shards.x, indices, loss)
        yield from ((k, entries, losses.cpu()) for (k, entries), losses in zip(tasks, batches, strict=True))

    def example_gradients_into(
        self, finish: Callable[[Tensor], _Result], row: Tensor, x: Tensor, y: Tensor
    ) -> Iterator[_Result]:
        """Yield ``finish(gradients)`` for each batch of per-example gradients, in the examples' order.

        Args:
            finish: a function of a batch's gradients (B, p) float32 with respect to p trainable parameters, called on
                the thread that computed the gradients.
            row: the model's parameters, (P,); the model is in evaluation mode.
            x: inputs (M, ...).
            y: labels (M,).
        """
        size, stored = batch_of_gradients(self.model), to_channels_last(x)

        def work(begin: int) -> _Result:
            network = self._bound().network.eval()
            batch = slice(begin, begin + size)
            inputs = to_channels_first(to_compute_dtype(stored[batch], torch.float32, self.device))
            params, labels = row.to(self.device), y[batch].to(self.device)
            return finish(example_gradients(self.model, network, params, inputs, labels))

        yield from self._pool.in_order(work, range(0, len(y), size))

    def _batches(self, x: Tensor, indices: Tensor | None) -> list[slice]:
        """Return the non-empty batches of x, or of its ``indices``; many networks fail without examples."""
        count = len(x) if indices is None else len(indices)
        large = self.backend == "loop" and x[:1].numel() > _LARGE
        size = _EVALUATED[self.backend] // (4 if large else 1)
        if self.backend == "loop" and self._parameters > _MANY:
            size = 8
        return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]

    def _evaluate_batches(
        self, models: Tensor, x: Tensor, indices: Tensor | None, finish: Callable[[Tensor, slice], Tensor]
    ) -> Iterator[Tensor]:
        """Yield ``finish(outputs, batch)`` for every batch, model by model."""
        stored, batches = to_channels_last(x), self._batches(x, indices)

        def work(task: tuple[Tensor, slice]) -> Tensor:
            model, batch = task
            bound = self._bound()
            bound.load(model)
            inputs = stored[batch] if indices is None else stored[indices[batch]]
            return finish(bound.outputs(to_channels_first(to_compute_dtype(inputs, self.dtype, self.device))), batch)

        yield from self._pool.in_order(work, [(model, batch) for model in models for batch in batches])

    def _bound(self) -> BoundNetwork:
        bound = getattr(self._networks, "bound", None)
        if bound is None:
            bound = self._networks.bound = BoundNetwork(self.model, self.device, self.dtype)
        return bound
