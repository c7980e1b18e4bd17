"""The updates that each view of a simulation will see: their layers, gradients, sizes and noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, inf, nan, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algorithms import CFL, PACFL, FedEM, FedRC, FedSoft, LocalOnly
from shoal.algorithms.wrapper import with_bases
from shoal.algorithms.wrappers.shared_body import OwnLayers
from shoal.audit.record_table import CLIENT, OUTSIDER, SERVER
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.data.preferences import View
from shoal.defenses import Augmentation, LaplaceNoise, TrainingSetup
from shoal.engine import Algorithm, LocalSGD, State
from shoal.models import Model, cross_entropy
from shoal.preflight.exposure_rule import (
    ExampleTerms,
    Exposure,
    InitialGradients,
    LayerShape,
    Moves,
    initial_gradients,
    most_exposed_layer,
)

_EXAMPLES = 2000
"""The number of examples for the rank of layers' inputs and for gradients' moments."""

_LINEAR_OPTIMIZERS = ("SGD", "ASGD")
"""Optimizers whose steps are sums of gradients."""


MAX_INPUTS = 4096
"""The largest number of a layer's inputs for which their rank is computed."""

_RANK_TOLERANCE = 1e-6
"""Singular values below this fraction of the largest are rounding errors of float32."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class VisibleMoves:
    """The layers, sizes and local training of a federation before the first round.

    Args:
        federation: the federation, with features as inputs if the network takes features.
        algorithm: the algorithm, which decides the clients that train each model.
        setup: the network, and local training with its defences.
        rounds: the number of rounds.
        participation: the fraction of the clients that take part in a round.
        seed: the seed of the initial model.
        start: the parameters (P,) from which training continues, or None for random initial parameters.
        max_grad_norm: the norm to which each example's gradient is clipped, or None for the norm in ``setup``.
    """

    federation: Federation
    algorithm: Algorithm
    setup: TrainingSetup
    rounds: int
    participation: float = 1.0
    seed: int = 0
    start: Tensor | None = None
    max_grad_norm: float | None = None

    @cached_property
    def local(self) -> LocalSGD:
        """The settings of local training in the first round."""
        return self.setup.first_local()

    @cached_property
    def copies(self) -> float:
        """The largest number of random copies of an example in training; infinite if every pass draws a new copy."""
        augmentation = self.local.augmentation
        still = isinstance(augmentation, Augmentation) and not (
            augmentation.rotation or augmentation.shift or augmentation.crop
        )
        return 1.0 if augmentation is None else 2.0 if still else inf

    @property
    def share_of_clients(self) -> float:
        """The fraction of the clients that take part in a round."""
        return self.federation.cohort_size(self.participation) / len(self.federation)

    @property
    def nothing(self) -> str:
        """The reason for a missing verdict, as a sentence."""
        if self.has(LocalOnly):
            return "nothing is sent, so an attacker sees only the models that clients release."
        return "no dense layer, convolution or embedding is sent, and the rule covers no other layers."

    def has(self, *kinds: type) -> bool:
        """Return whether the algorithm, or an algorithm inside a wrapper, is an instance of one of ``kinds``."""
        return any(isinstance(base, kinds) for base in with_bases(self.algorithm))

    @cached_property
    def layers(self) -> tuple[LayerShape, ...]:
        """The layers whose updates clients send."""
        if self.has(LocalOnly):
            return ()
        # Transformed images span all dimensions.
        layers = layer_shapes(self.setup.model, self._examples[0], ranks=self.copies == 1)
        layout = self.setup.model.layout
        own = [base.own_mask(layout) for base in with_bases(self.algorithm) if isinstance(base, OwnLayers)]
        kept = {slot.name for part in own for slot in layout.slots if bool(part[slot.start])}
        return tuple(layer for layer in layers if f"{layer.name}.weight" not in kept)

    @cached_property
    def gradients(self) -> InitialGradients:
        """The terms that examples add to the updates of `layers`, on an initial model."""
        model, row = self.setup.model, self.start
        if row is None:
            row = model.init(Stream(self.seed, ("preflight",)))
        names = [layer.name for layer in self.layers]
        return initial_gradients(model, row, *self._examples, names, self.clip, whole=self._laplace > 0)

    @property
    def clip(self) -> float:
        """The norm to which each example's gradient is clipped; infinite without clipping."""
        rule = self.local.gradient_privacy
        return self.max_grad_norm or (inf if rule is None else rule.max_grad_norm)

    def clipped(self, norm: float) -> "VisibleMoves":
        """Return a copy with gradients clipped to the norm ``norm``."""
        if norm not in self._of_clip:
            self._of_clip[norm] = replace(self, max_grad_norm=norm)
        return self._of_clip[norm]

    @cached_property
    def _of_clip(self) -> "dict[float, VisibleMoves]":
        return {}

    @cached_property
    def _examples(self) -> tuple[Tensor, Tensor]:
        parts = (self.federation.clients, self.federation.test, self.federation.shadow)
        chosen = [(part, torch.linspace(0, len(part.x) - 1, min(_EXAMPLES, len(part.x))).long()) for part in parts]
        x, y = (torch.cat([getattr(part, name).cpu()[index] for part, index in chosen]) for name in ("x", "y"))
        return x[:_EXAMPLES], y[:_EXAMPLES]

    def sum_of_clients(self, group: int) -> tuple[int, int]:
        """Return the number of clients behind the model of a group, and the number of these clients' examples.

        With one model, these are all clients. If clusters match groups, these are the group's clients; if clusters
        split groups, a fraction of them.
        """
        sizes = self.federation.clients.sizes
        own = sizes[self.federation.with_group(group)]
        if self.has(CFL, PACFL):
            return len(own), int(own.sum())
        bases = with_bases(self.algorithm)
        models = next((int(getattr(base, "clusters")) for base in bases if hasattr(base, "clusters")), 1)  # noqa: B009
        if models == 1 or self.has(FedSoft, FedEM, FedRC):
            return len(sizes), int(sizes.sum())
        apart = 1 if self.federation.row_groups else len(self.federation.groups_with_clients)
        clients = ceil(len(own) / max(1, models // apart))
        return clients, ceil(int(own.sum()) * clients / len(own))

    def moves(self, view: str, size: int, clients: int, examples: int | None = None) -> Moves:
        """Return the updates that a view sees of one client or of a sum over clients.

        Args:
            size: the number of examples per client.
            examples: the number of examples in the sum, or None for ``size`` per client.
        """
        local, participation = self.local, self.share_of_clients
        passes, steps = local.passes_of(size), local.steps_of(size)
        rounds, share = self.rounds, min(1.0, steps * local.batch(size) / size)
        if view == SERVER:
            rounds, clients, participation = max(1, round(participation * rounds)), 1, 1.0
        else:
            share *= participation
        summed, merged = max(1.0, clients * participation), 1
        if view == OUTSIDER:
            passes, steps, merged, rounds = passes * rounds, steps * rounds, rounds, 1
            # The fraction of the examples used in any of the merged rounds.
            share = 1 - (1 - share) ** merged
        noise, gradient_noise = self.noise(size, steps, passes, summed)
        return Moves(
            examples or size * clients, rounds, passes, merged, share or 1.0, self.copies,
            noise=noise, gradient_noise=gradient_noise, exact=self._exact,
        )  # fmt: skip

    def noise(
        self, size: int, steps: int, passes: int, clients: float, multiplier: float | None = None
    ) -> tuple[float, float]:
        """Return the noise of an update in two units: one example's largest contribution, and gradients.

        ``multiplier`` replaces the configured noise multiplier of DP-SGD.
        """
        rule = self.local.gradient_privacy
        if multiplier is None:
            multiplier = 0.0 if rule is None else rule.noise_multiplier
        private = multiplier * sqrt(steps * clients) / passes
        # Relative to the update's norm, which no example exceeds.
        laplace = self._laplace * sqrt(clients / self.setup.model.parameters)
        length = self.gradients.update_length(size) if laplace else 0.0
        scaled = private * self.clip if private else 0.0
        return sqrt(private**2 + laplace**2), sqrt(scaled**2 + (laplace * length) ** 2)

    @property
    def _laplace(self) -> float:
        """The norm of each client's noise, relative to the norm of the client's update."""
        filtered = self.setup.client_filter
        return (filtered.noise_multiplier or 0.0) if isinstance(filtered, LaplaceNoise) else 0.0

    @property
    def _exact(self) -> bool:
        """Whether updates are sums of (error x input), apart from noise of known size."""
        optimizer, filtered = self.local.optimizer, self.setup.client_filter
        known = filtered is None or (isinstance(filtered, LaplaceNoise) and filtered.epsilon is None)
        linear = optimizer is None or optimizer.name in _LINEAR_OPTIMIZERS
        return known and linear

    def most(
        self, moves: Moves, layers: Sequence[LayerShape] | None = None, terms: Mapping[str, ExampleTerms] | None = None
    ) -> Exposure:
        """Return the exposure of the most exposed layer."""
        exposure = most_exposed_layer(layers or self.layers, moves, self.gradients.terms if terms is None else terms)
        assert exposure is not None
        return exposure


@dataclass(frozen=True, eq=False)
class RecognisedRisks:
    """The risk of clients whose records the rule of exposure recognises, without the red team's attacks.

    The risk refers to the client's current cluster and to all rounds of the simulation. Its value is
    `RECOGNISED_AUC`, which stands for a balanced accuracy.

    Args:
        seen: the updates that each view will see.
        view: the view for clients whose limits name no view.
    """

    seen: VisibleMoves
    view: View

    def __call__(self, state: State) -> Tensor:
        """Return each client's risk (N,) float64 for the view in its limit, or NaN without recognition."""
        federation, assignment = self.seen.federation, state.assignment
        sizes = federation.clients.sizes
        views = federation.preferences.views(self.view)
        risks = torch.full((len(federation),), torch.nan, dtype=torch.float64)
        members = torch.bincount(assignment[assignment >= 0], minlength=len(state.models))
        # A client sees sums over its cluster; the server sees each client's update.
        mean = [ceil(float(sizes[assignment == k].double().mean())) if n else 0 for k, n in enumerate(members.tolist())]
        for i, (view, k, size) in enumerate(zip(views, assignment.tolist(), sizes.tolist(), strict=True)):
            if view == CLIENT and k >= 0 and mean[k]:
                risks[i] = self._least(view, mean[k], int(members[k]))
            elif view == SERVER and k >= 0 and size:
                risks[i] = self._least(view, size, 1)
        return risks

    def _least(self, view: str, size: int, clients: int) -> float:
        if (view, size, clients) not in self._known:
            exposure = self.seen.most(self.seen.moves(view, size, clients)) if self.seen.layers else None
            recognised = exposure is not None and exposure.verdict == "recognised"
            self._known[view, size, clients] = exposure.auc[0] if exposure is not None and recognised else nan
        return self._known[view, size, clients]

    @cached_property
    def _known(self) -> dict[tuple[str, int, int], float]:
        return {}


def layer_shapes(model: Model, x: Tensor, *, ranks: bool = True) -> tuple[LayerShape, ...]:
    """Return the shapes of trained dense layers, convolutions and embeddings, in the order of the forward pass.

    A convolution counts as a dense layer on patches, and an embedding as a dense layer on one-hot words. Other layers
    are ignored.

    Args:
        x: examples (B, ...); the rank of a dense layer's inputs is at most B.
        ranks: whether to replace a dense layer's number of inputs by their rank over ``x``, if the rank is lower.

    Example:
        >>> import torch, shoal
        >>> from shoal.preflight.visible_moves import layer_shapes
        >>> model = shoal.create_model("mlp", shoal.VectorShape(inputs=6, classes=3), hidden=4)
        >>> for layer in layer_shapes(model, torch.randn(20, 6)):
        ...     print(layer.name, layer.inputs, layer.outputs, layer.reads_data)
        ...
        hidden 6 4 True
        output 4 2 False
    """
    network, shapes = model.structure().eval(), []
    hooks = [
        module.register_forward_hook(partial(_note, shapes, name, len(x), ranks))
        for name, module in network.named_modules()
        if isinstance(module, (nn.Linear, nn.Embedding, *_CONVOLUTIONS)) and module.weight.requires_grad
    ]
    with torch.enable_grad():
        outputs = network(x.detach())
    for hook in hooks:
        hook.remove()
    layers = [layer for layer, _ in shapes]
    # The errors of softmax add up to 0 over the classes.
    if shapes and model.loss is cross_entropy and shapes[-1][1] == outputs.shape[-1] > 1:
        layers[-1] = replace(layers[-1], outputs=layers[-1].outputs - 1)
    return tuple({layer.name: layer for layer in layers}.values())


def _note(
    shapes: list[tuple[LayerShape, int]],
    name: str,
    count: int,
    ranks: bool,
    module: nn.Module,
    given: tuple[Any, ...],
    out: Tensor,
) -> None:
    """Append the shape of a layer that is called on ``count`` examples, and its number of outputs."""
    read, *_ = given
    reads_data = not read.requires_grad
    if isinstance(module, nn.Linear):
        inputs, outputs, positions = module.in_features, module.out_features, read.numel() // module.in_features
        if ranks and positions == count and 1 < inputs <= MAX_INPUTS:
            inputs = _rank(read.detach().reshape(count, inputs))
    elif isinstance(module, nn.Embedding):
        inputs, outputs, positions = module.num_embeddings, module.embedding_dim, read.numel()
    else:
        weight, outputs = getattr(module, "weight"), getattr(module, "out_channels")  # noqa: B009
        inputs, positions = weight[0].numel(), out.numel() // outputs
    shapes.append((LayerShape(name, inputs, outputs, ceil(positions / count), reads_data), outputs))


def _rank(rows: Tensor) -> int:
    """Return the rank of rows (B, d) in float32, at least 1, or d if B is too small to determine the rank."""
    # The eigenvalues of the smaller Gram matrix are squared singular values.
    wide = rows.double()
    product = wide @ wide.T if len(rows) < rows.shape[1] else wide.T @ wide
    values = torch.linalg.eigvalsh(product)
    rank = int((values > _RANK_TOLERANCE**2 * values[-1]).sum())
    return rows.shape[1] if rank == len(rows) < rows.shape[1] else max(1, rank)
