"""The vmap backend: many owners in one batched computation; best for dense networks on a CPU.

Owners of unequal sizes are padded; a padded example weighs nothing, and an owner whose steps are done stays as it is.
Gradients are those of `DenseNetwork` where the model is one, and otherwise of `torch.vmap`.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.memory_format import to_channels_first, to_channels_last, to_compute_dtype
from shoal.data.shards import Shards
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.backends.dense_network import DenseNetwork, dense_network, row_class
from shoal.engine.backends.loop_backend import AUGMENTED, augmented
from shoal.engine.backends.optimizers import BatchedStep, trained_names
from shoal.engine.backends.vmap_gradients import GradientInputs, VmapGradients, zero_labels
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.steps import LinearTerm, StepRule, in_groups
from shoal.models.model import Model

_IN_CACHE = {"dense": 2**20, "vmap": 2**21}
"""Elements in the rows of the owners of one computation, for the caches to hold them between two steps."""

_Step = tuple[Tensor, Tensor, Tensor]
"""The entries (n, B) of the shards that owners use in a step, their shares (n, B) of the mean loss, and (n, 1), 1 for
owners that take part and 0 for those whose steps are done."""

_Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Stored inputs (n, B, ...), labels (n, B) or (n, B, d), shares times example weights (n, B), and who takes part."""


class VmapBackend:
    """Trains owners many at a time."""

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        self._layout, self._device, self._dtype = model.layout, device, dtype
        self._gradients = VmapGradients(partial(model.structure, device, dtype), model.loss, dtype)
        self.dense: DenseNetwork | None = dense_network(model) if dtype == torch.float32 else None

    def units(self, shards: Shards, local: LocalSGD) -> list[Tensor]:
        """The owners (n,) in the parts that are computed together, of nearly equal sizes so that little is padded: as
        many as keep their rows in the caches, and at most 256 (a step's fixed cost is small by then).
        """
        sizes = shards.sizes
        queue = sizes.argsort(descending=True, stable=True)
        alike = [queue]
        if self.dense is not None:
            # Also apart: those whose batches are all they have, and who may train in their span.
            full = local.batches(sizes[queue]) == sizes[queue]
            kinds = 2 * self._rows_of(shards, queue, local) + full
            alike = queue.split(kinds.unique_consecutive(return_counts=True)[1].tolist())
        together = min(max(_IN_CACHE["vmap" if self.dense is None else "dense"] // self._layout.size, 4), 256)
        parts = [part for owners in alike if len(owners) for part in owners.tensor_split(-(-len(owners) // together))]
        if self.dense is None:
            example = to_channels_last(shards.x).shape[1:]
            for part in parts:
                shape = torch.Size((len(part), int(self._rows_of(shards, part, local).max()), *example))
                names, steps = trained_names(local, self._layout), int(local.steps_each(sizes[part]).max())
                self._gradients.expect(shape, names, steps, partial(self._zero_inputs, shape, shards, local))
        return parts

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
        """Train some owners, as `LoopBackend.train`; only the structure of ``bound``'s network is used."""
        width = int(self._rows_of(shards, owners, local).max())
        steps = _steps(shards, owners, randomness.orders, local, width)
        streams = [Stream(seed) for seed in randomness.seeds[owners].tolist()]
        bound.network.train()
        batches = self._batches(shards, steps, local, streams)
        if rule is not None:
            self._train_by_rule(bound, rows, batches, local, rule)
            return
        weights, rest = self._tensors(rows, local)
        optimizer = BatchedStep(local, rows, weights, self._layout, term, owners)
        plain = term is None and local.momentum == 0 and local.clip_norm is None and not local.private
        if self.dense is None:
            for x, y, weight, active in batches:
                optimizer(self._gradients(bound.network, weights, rest, x, y, weight), active)
        elif local.private:
            self._train_privately(self.dense, optimizer, rest, shards, steps, batches, streams)
        elif not plain:
            for x, y, weight, active in batches:
                optimizer(self.dense.gradients(weights, rest, x, y, weight), active)
        elif self._stays_in_span(shards.sizes[owners], local, width, len(steps)):
            x, y, weight, _ = next(batches)
            self.dense.train_in_span(weights, x, y, weight, len(steps), local)
        else:
            for x, y, weight, active in batches:
                self.dense.step(weights, rest, x, y, weight, active, local)

    def _train_by_rule(
        self, bound: BoundNetwork, rows: Tensor, batches: Iterator[_Batch], local: LocalSGD, rule: StepRule
    ) -> None:
        """Move rows (n, R) by steps of a rule."""
        for group in in_groups(batches, rule.batches):
            filled = _filled(group)

            def gradient(params: Tensor, number: int, filled: list[_Batch] = filled) -> Tensor:
                x, y, weight, active = filled[min(number, len(filled) - 1)]
                params = params.contiguous()
                weights, rest = self._tensors(params, local)
                flat = torch.zeros_like(params)
                views = self._layout.views(flat)
                inputs = (weights, rest, x, y, weight)
                gradients = (
                    self._gradients(bound.network, *inputs) if self.dense is None else self.dense.gradients(*inputs)
                )
                for name, value in gradients.items():
                    views[name].copy_(value)
                if local.weight_decay:
                    trainable = self._layout.trainable
                    flat[:, :trainable].add_(params[:, :trainable] * active, alpha=local.weight_decay)
                return flat

            rows.copy_(rule.step(rows, gradient, local.learning_rate))

    def _train_privately(
        self,
        dense: DenseNetwork,
        optimizer: BatchedStep,
        rest: dict[str, Tensor],
        shards: Shards,
        steps: list[_Step],
        batches: Iterator[_Batch],
        streams: list[Stream],
    ) -> None:
        """Train on clipped gradients with each owner's own noise."""
        local = optimizer.local
        generators = [stream("noise").generator() for stream in streams]
        nominal = local.batches(shards.sizes[optimizer.owners])[:, None]
        for (_, share, _), (x, y, _, active) in zip(steps, batches, strict=True):
            expected = torch.where(share > 0, nominal, 0).to(x.device)
            noise = [
                generator if taken else None
                for generator, taken in zip(generators, (active > 0).flatten().tolist(), strict=True)
            ]
            optimizer(dense.private_gradients(optimizer.weights, rest, x, y, local, expected, noise), active)

    def _batches(self, shards: Shards, steps: list[_Step], local: LocalSGD, streams: list[Stream]) -> Iterator[_Batch]:
        """The batches of all steps; with augmentation those of several steps are transformed together."""
        augmentation = local.augmentation
        if augmentation is None:
            previous = batch = None
            for step in steps:
                if batch is None or step is not previous:
                    batch, previous = self._batch(shards, *step), step
                yield batch
            return
        generators = [stream("augmentation").generator() for stream in streams]
        for block in in_groups(steps, max(1, AUGMENTED // steps[0][0].numel())):
            entries, share, active = map(torch.stack, zip(*block, strict=True))
            x, y, weight, active = self._batch(shards, entries, share, active)
            # An owner's draws are of one step after another, as the loop makes them.
            used = (share > 0).transpose(0, 1)
            counts = used.sum(dim=(1, 2)).tolist()
            drawn = torch.cat([augmentation.draws(*each) for each in zip(counts, generators, strict=True)])
            draws = drawn.new_zeros(*used.shape, drawn.shape[1])
            draws[used] = drawn
            # Those of one step of all owners after another; padded rows stay as they are.
            draws, used = (each.transpose(0, 1).flatten(0, 2) for each in (draws, used))
            kept = slice(None) if bool(used.all()) else used.to(x.device)
            images = x.flatten(0, 2)
            images[kept] = to_channels_last(augmented(augmentation, to_channels_first(images[kept]), draws[used]))
            x = images.view(x.shape)
            yield from zip(x, y, weight, active, strict=True)

    def _batch(self, shards: Shards, entries: Tensor, share: Tensor, active: Tensor) -> _Batch:
        stored, indices = to_channels_last(shards.x), shards.indices[entries].to(shards.y.device)
        # In a quarter of the time of indexing.
        x = stored.index_select(0, indices.flatten()).unflatten(0, indices.shape)
        x, share = to_compute_dtype(x, self._dtype, self._device), share.to(self._device)
        weight = share if shards.weights is None else share * shards.weights[entries].to(share)
        return x, shards.y[indices].to(self._device), weight, active.to(self._device)

    def _rows_of(self, shards: Shards, owners: Tensor, local: LocalSGD) -> Tensor:
        """(u,), how many rows owners need in a batch, copies included; those that share a unit all have the most."""
        batches = local.batches(shards.sizes[owners])
        return local.multiplicity * (batches if self.dense is None else row_class(batches))

    def _stays_in_span(self, sizes: Tensor, local: LocalSGD, examples: int, steps: int) -> bool:
        """Whether plain steps are less work in the span of the inputs, which must stay the same."""
        same = local.augmentation is None and local.tensors is None and local.full(sizes)
        return same and self.dense is not None and self.dense.is_cheaper_in_span(examples, steps)

    def _tensors(self, rows: Tensor, local: LocalSGD) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The views of rows (n, P) that ``local`` trains, and the others."""
        rest = self._layout.views(rows)
        return {name: rest.pop(name) for name in trained_names(local, self._layout)}, rest

    def _zero_inputs(self, shape: torch.Size, shards: Shards, local: LocalSGD) -> GradientInputs:
        """All-zero arguments of a gradient for stored inputs of a shape (n, B, ...)."""
        weights, rest = self._tensors(torch.zeros(shape[0], self._layout.size, device=self._device), local)
        x = to_compute_dtype(torch.zeros(shape, dtype=shards.x.dtype), self._dtype, self._device)
        y = zero_labels(shape, shards.y, self._device)
        return weights, rest, x, y, torch.zeros(shape[:2], device=self._device)


def _filled(group: list[_Batch]) -> list[_Batch]:
    """The batches of one step; an owner that has fewer left uses its last one again."""
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
    """All steps of the owners, in batches of ``width`` rows. Steps on the same examples have the same tensors."""
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
        # In an owner's full batch order is irrelevant, but for which image has which draws of augmentation.
        shuffled = orders[owners[:, None], line[..., None], position]
        position = torch.where((batches < sizes)[:, None], shuffled, position)
    share = used / used.sum(dim=2, keepdim=True).clamp(min=1)
    active = (step < steps).float()[..., None]
    plan = list(zip(first[:, None] + position, share, active, strict=True))
    return plan * int(steps.max()) if full else plan
