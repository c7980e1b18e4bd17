"""The vmap backend, which trains many data owners' models in one batch; fastest for dense networks on a CPU.

Examples of weight 0 pad all owners to equal sizes. Gradients come from `DenseNetwork` if the model has a closed form,
otherwise from `torch.func`.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.core.randomness import Stream
from shoal.data.shards import Shards, to_channels_first, to_channels_last, to_compute_dtype
from shoal.engine.backends.bound_network import BoundNetwork, LocalStep, trained_names
from shoal.engine.backends.dense_network import DenseNetwork, dense_network, flat, row_class
from shoal.engine.backends.loop_backend import AUGMENTED, augmented
from shoal.engine.local_sgd import InputAugmentation, LinearTerm, LocalRandomness, LocalSGD, StepRule, in_groups
from shoal.models.model import Loss, Model

_IN_CACHE = {"dense": 2**20, "vmap": 2**21, "span": 2**21}
"""The number of elements per batched computation that fits the processor's caches, by method of training."""

_SHARED = 16
"""The largest number of owners per `DenseNetwork.train_in_span`, which leaves work for other threads."""

BatchedTensors = dict[str, Tensor]
"""The tensors of n owners by name, (n, ...) each."""

_Step = tuple[Tensor, Tensor, Tensor]
"""The used entries (n, B) of the shards, their shares (n, B) of the mean loss, and a mask (n, 1) of active owners."""

_Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Stored inputs (n, B, ...), labels (n, B) or (n, B, d), shares times example weights (n, B), and active owners."""


class VmapBackend:
    """A trainer of many data owners' models at once."""

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self._layout, self._loss, self._device, self._dtype = model.layout, model.loss, device, dtype
        self.dense: DenseNetwork | None = dense_network(model) if dtype == torch.float32 else None

    def units(self, shards: Shards, local: LocalSGD) -> list[Tensor]:
        """Split owners (n,) by size into parts of at most 256 owners that fit the processor's caches."""
        sizes = shards.sizes
        queue = sizes.argsort(descending=True, stable=True)
        alike = [queue]
        if self.dense is not None:
            # Owners with full batches are separate, because `train_in_span` may train them.
            full = local.batches(sizes[queue]) == sizes[queue]
            kinds = 2 * self._rows_of(shards, queue, local) + full
            alike = queue.split(kinds.unique_consecutive(return_counts=True)[1].tolist())
        return [
            part
            for owners in alike
            if len(owners)
            for part in owners.tensor_split(-(-len(owners) // self._together(shards, owners, local)))
        ]

    def _together(self, shards: Shards, owners: Tensor, local: LocalSGD) -> int:
        """Return the number of similar ``owners`` (u,) to compute together."""
        if self.dense is None or not self._stays_in_span(self.dense, shards, owners, local):
            return min(max(_IN_CACHE["vmap" if self.dense is None else "dense"] // self._layout.size, 4), 256)
        rows = int(self._rows_of(shards, owners, local).max())
        return min(max(_IN_CACHE["span"] // (rows * sum(self.dense.first.shape)), 4), _SHARED)

    def train(
        self,
        bound: BoundNetwork,
        rows: Tensor,
        shards: Shards,
        owners: Tensor,
        randomness: LocalRandomness,
        local: LocalSGD,
        term: LinearTerm | None = None,
        *,
        rule: StepRule | None = None,
    ) -> None:
        """Train some owners like `LoopBackend.train`; ``bound`` supplies only the network's structure."""
        width = int(self._rows_of(shards, owners, local).max())
        steps = _steps(shards, owners, randomness.orders, local, width)
        bound.network.train()
        generators = partial(_generators, randomness, owners)
        batches = self._batches(shards, steps, local, generators)
        if rule is not None:
            self._train_by_rule(bound.network, rows, batches, local, rule)
            return
        weights, rest = self._tensors(rows, local)
        if self.dense is not None and term is None and _is_plain(local):
            if self._stays_in_span(self.dense, shards, owners, local):
                x, y, weight, _ = next(batches)
                self.dense.train_in_span(rows, (flat(x), y, weight), len(steps), local)
                return
            for x, y, weight, active in batches:
                self.dense.step(weights, rest, x, y, weight, active, local)
            return
        optimizer = LocalStep(
            local, rows, [*weights.values()], self._layout, None if term is None else term.constants(owners)
        )
        noise, nominal = generators("noise") if local.private else [], local.batches(shards.sizes[owners])[:, None]
        for (_, share, _), (x, y, weight, active) in zip(steps, batches, strict=True):
            if self.dense is not None and local.private:
                expected = torch.where(share > 0, nominal, 0).to(x.device)
                drawing = [noise[i] if taken else None for i, taken in enumerate((active > 0).flatten().tolist())]
                gradients = self.dense.private_gradients(weights, rest, x, y, local, expected, drawing)
            else:
                gradients = self._gradients(bound.network, weights, rest, x, y, weight)
            optimizer.step([gradients[name] for name in weights], active=active)

    def _gradients(
        self, network: nn.Module, weights: BatchedTensors, rest: BatchedTensors, x: Tensor, y: Tensor, weight: Tensor
    ) -> BatchedTensors:
        """Return the gradients (n, ...), in closed form or by `vmap_gradients`."""
        if self.dense is not None:
            return self.dense.gradients(weights, rest, x, y, weight)
        return vmap_gradients(network, self._loss, self._dtype, weights, rest, x, y, weight)

    def _train_by_rule(
        self, network: nn.Module, rows: Tensor, batches: Iterator[_Batch], local: LocalSGD, rule: StepRule
    ) -> None:
        """Train rows (n, R) in place by a step rule."""
        for group in in_groups(batches, rule.batches):
            filled = _filled(group)

            def gradient(params: Tensor, number: int, filled: list[_Batch] = filled) -> Tensor:
                x, y, weight, active = filled[min(number, len(filled) - 1)]
                params = params.contiguous()
                weights, rest = self._tensors(params, local)
                flat = torch.zeros_like(params)
                views = self._layout.views(flat)
                for name, value in self._gradients(network, weights, rest, x, y, weight).items():
                    views[name].copy_(value)
                if local.weight_decay:
                    trainable = self._layout.trainable
                    flat[:, :trainable].add_(params[:, :trainable] * active, alpha=local.weight_decay)
                return flat

            rows.copy_(rule.step(rows, gradient, local.learning_rate))

    def _batches(
        self, shards: Shards, steps: list[_Step], local: LocalSGD, generators: Callable[[str], list[torch.Generator]]
    ) -> Iterator[_Batch]:
        """Yield the batches of all steps; augmentation transforms the images of several steps together."""
        augmentation = local.augmentation
        if augmentation is None:
            previous = batch = None
            for step in steps:
                if batch is None or step is not previous:
                    batch, previous = self._batch(shards, *step), step
                yield batch
            return
        drawing = generators("augmentation")
        for block in in_groups(steps, max(1, AUGMENTED // steps[0][0].numel())):
            # An owner's draws follow the order of steps, as in the loop backend.
            entries, share = (torch.stack(each, dim=1) for each in zip(*(step[:2] for step in block), strict=True))
            x = self._transformed(shards, entries.flatten(1), share.flatten(1) > 0, augmentation, drawing)
            for step, inputs in zip(block, x.unflatten(1, (len(block), -1)).unbind(1), strict=True):
                _, y, weight, active = self._batch(shards, *step, inputs=False)
                yield inputs, y, weight, active

    def _transformed(
        self,
        shards: Shards,
        entries: Tensor,
        used: Tensor,
        augmentation: InputAugmentation,
        generators: list[torch.Generator],
    ) -> Tensor:
        """Return the images (n, m, ...) of ``entries`` (n, m), transformed where ``used`` (n, m) is true."""
        x = self._inputs(shards, entries).flatten(0, 1)
        counts = used.sum(dim=1).tolist()
        draws = torch.cat([augmentation.draws(*each) for each in zip(counts, generators, strict=True)])
        if bool(used.all()):
            x = to_channels_last(augmented(augmentation, to_channels_first(x), draws))
        else:
            kept = used.flatten().to(x.device)
            x[kept] = to_channels_last(augmented(augmentation, to_channels_first(x[kept]), draws))
        return x.unflatten(0, entries.shape)

    def _batch(self, shards: Shards, entries: Tensor, share: Tensor, active: Tensor, *, inputs: bool = True) -> _Batch:
        """Return a step's batch; its inputs are empty if ``inputs`` is false."""
        share, indices = share.to(self._device), shards.indices[entries].to(shards.y.device)
        weight = share if shards.weights is None else share * shards.weights[entries].to(share)
        x = self._inputs(shards, entries) if inputs else share[:, :0]
        return x, shards.y[indices].to(self._device), weight, active.to(self._device)

    def _inputs(self, shards: Shards, entries: Tensor) -> Tensor:
        """Return the stored inputs (n, m, ...) of ``entries`` (n, m)."""
        stored, indices = to_channels_last(shards.x), shards.indices[entries].to(shards.y.device)
        # Four times as fast as indexing.
        x = stored.index_select(0, indices.flatten()).unflatten(0, indices.shape)
        return to_compute_dtype(x, self._dtype, self._device)

    def _rows_of(self, shards: Shards, owners: Tensor, local: LocalSGD) -> Tensor:
        """Return the number of rows (u,) per batch that owners need, copies included."""
        batches = local.batches(shards.sizes[owners])
        return local.multiplicity * (batches if self.dense is None else row_class(batches))

    def _stays_in_span(self, dense: DenseNetwork, shards: Shards, owners: Tensor, local: LocalSGD) -> bool:
        """Return whether `DenseNetwork.train_in_span` is faster than plain steps for similar ``owners``."""
        sizes = shards.sizes[owners]
        if not _is_plain(local) or local.augmentation is not None or local.tensors is not None or not local.full(sizes):
            return False
        width, steps = int(self._rows_of(shards, owners, local).max()), int(local.steps_each(sizes).max())
        return dense.cheaper_in_span(width, steps)

    def _tensors(self, rows: Tensor, local: LocalSGD) -> tuple[BatchedTensors, BatchedTensors]:
        """Return the views of rows (n, P) that ``local`` trains, and the other views."""
        rest = self._layout.views(rows)
        return {name: rest.pop(name) for name in trained_names(local, self._layout)}, rest


def vmap_gradients(
    network: nn.Module, loss: Loss, dtype: torch.dtype, weights: BatchedTensors, rest: BatchedTensors, *batch: Tensor
) -> BatchedTensors:
    """Return gradients of ``sum_b share[i, b] * loss(network(x[i, b]), y[i, b])`` by tensor name, (n, ...) each.

    Args:
        network: the model's structure, in training mode, used by no other thread.
        loss: the per-example loss.
        dtype: the number format of the computations.
        weights: the trained tensors by name, (n, ...) each.
        rest: the tensors that are not trained, (n, ...) each.
        *batch: stored inputs x (n, B, ...), labels y (n, B) and each example's weight (n, B) in its owner's mean loss.
    """

    def of_owner(weights: BatchedTensors, rest: BatchedTensors, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        tensors = {name: tensor.to(dtype) for name, tensor in (weights | rest).items()}
        outputs = functional_call(network, tensors, (to_channels_first(x),)).float()
        return (loss(outputs, y) * share).sum()

    return vmap(grad(of_owner))(weights, rest, *batch)


def _is_plain(local: LocalSGD) -> bool:
    """Return whether steps consist only of gradient and weight decay."""
    return local.momentum == 0 and local.clip_norm is None and not local.private


def _generators(randomness: LocalRandomness, owners: Tensor, name: str) -> list[torch.Generator]:
    """Return a new generator per owner, at the start of the owner's stream ``name``."""
    return [Stream(seed)(name).generator() for seed in randomness.seeds[owners].tolist()]


def _filled(group: list[_Batch]) -> list[_Batch]:
    """Return the batches of one step; an owner with fewer batches repeats its last batch."""
    filled = group[:1]
    for batch in group[1:]:
        active = batch[-1].flatten() > 0
        chosen = (
            torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, last)
            for new, last in zip(batch, filled[-1], strict=True)
        )
        filled.append((next(chosen), next(chosen), next(chosen), next(chosen)))
    return filled


def _steps(shards: Shards, owners: Tensor, orders: Tensor, local: LocalSGD, width: int) -> list[_Step]:
    """Return all steps of the owners, in batches of ``width`` rows. Steps on the same examples share tensors."""
    first, sizes = shards.offsets[owners], shards.sizes[owners]
    batches, steps = local.batches(sizes), local.steps_each(sizes)
    full = local.full(sizes)
    step = torch.arange(1 if full else int(steps.max()))[:, None]
    per_pass = (sizes + batches - 1) // batches
    within = torch.arange(width) // local.multiplicity
    position = (step % per_pass * batches)[..., None] + within
    used = (within < batches[:, None]) & (position < sizes[:, None]) & (step < steps)[..., None]
    position = torch.where(used, position, 0)
    if not full:
        line = (step // per_pass).clamp(max=orders.shape[1] - 1)
        # Order matters in a full batch only for augmentation, which draws image by image.
        shuffled = orders[owners[:, None], line[..., None], position]
        position = torch.where((batches < sizes)[:, None], shuffled, position)
    share = used / used.sum(dim=2, keepdim=True).clamp(min=1)
    active = (step < steps).float()[..., None]
    plan = list(zip(first[:, None] + position, share, active, strict=True))
    return plan * int(steps.max()) if full else plan
