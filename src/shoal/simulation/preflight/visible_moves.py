"""What each view of a simulation will see: layers, gradients of examples, and moves with their sizes and noise."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil, inf, sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.algorithms import CFL, PACFL, FedEM, FedRC, FedSoft, LocalOnly
from shoal.algorithms.personal.own_layers import OwnLayers
from shoal.algorithms.wrapper import with_bases
from shoal.audit.preflight import (
    ExampleTerms,
    Exposure,
    InitialGradients,
    LayerShape,
    Moves,
    initial_gradients,
    layer_shapes,
    most_exposed,
)  # fmt: skip
from shoal.audit.records import OUTSIDER, SERVER
from shoal.core.randomness import Stream
from shoal.defenses import Augmentation, LaplaceNoise

if TYPE_CHECKING:
    from shoal.simulation.simulation import Simulation

_EXAMPLES = 2000
"""Examples by which the rank of what layers read is computed, and the moments of gradients."""

_LINEAR_OPTIMIZERS = ("SGD", "ASGD")
"""Optimizers whose steps are sums of gradients."""


class VisibleMoves:
    """The layers, sizes and local training of a simulation.

    Args:
        simulation: before its first round.
        clipped: the length that gradients of examples are clipped to; None: as it is configured.
    """

    def __init__(self, simulation: "Simulation", clipped: float | None = None) -> None:
        self.simulation, self.federation, self._clipped = simulation, simulation.federation, clipped
        self._of_clip = dict[float, VisibleMoves]()
        self.local, self.bases = simulation.setup.first_local(), [*with_bases(simulation.algorithm)]
        augmentation = self.local.augmentation
        still = isinstance(augmentation, Augmentation) and not (
            augmentation.rotation or augmentation.shift or augmentation.crop
        )
        self.copies = 1.0 if augmentation is None else 2.0 if still else inf

    @property
    def participation(self) -> float:
        """The fraction of the clients in a round's cohort."""
        return self.federation.cohort_size(self.simulation.participation) / len(self.federation)

    @property
    def nothing(self) -> str:
        """Why the rule says nothing."""
        if self.has(LocalOnly):
            return "nothing is sent, so there is nothing to see but the models that clients release."
        return "no dense layer, convolution or embedding is sent, and the rule is of no other."

    def has(self, *kinds: type) -> bool:
        """Whether the algorithm is one of these, or wraps one."""
        return any(isinstance(base, kinds) for base in self.bases)

    @cached_property
    def layers(self) -> tuple[LayerShape, ...]:
        """The layers whose moves are sent."""
        if self.has(LocalOnly):
            return ()
        # Transformed images have all dimensions, also where those as they are lack some.
        layers = layer_shapes(self.simulation.setup.model, self._examples[0], ranks=self.copies == 1)
        layout = self.simulation.setup.model.layout
        own = [base.kept(layout) for base in self.bases if isinstance(base, OwnLayers)]
        kept = {slot.name for part in own for slot in layout.slots if bool(part[slot.start])}
        return tuple(layer for layer in layers if f"{layer.name}.weight" not in kept)

    @cached_property
    def gradients(self) -> InitialGradients:
        """What examples add to these layers' moves, by a model as the first round begins with."""
        simulation, model = self.simulation, self.simulation.setup.model
        row = model.init(Stream(simulation.seed, ("preflight",)))
        if simulation.start is not None:
            row = simulation.start.state.models[0].cpu()
        names = [layer.name for layer in self.layers]
        return initial_gradients(model, row, *self._examples, names, self.clip, whole=self._laplace > 0)

    @property
    def clip(self) -> float:
        """The length that each example's gradient is clipped to; infinite: to none."""
        rule = self.local.gradient_privacy
        return self._clipped or (inf if rule is None else rule.max_grad_norm)

    def clipped(self, norm: float) -> "VisibleMoves":
        """The same with gradients clipped to a length."""
        if norm not in self._of_clip:
            self._of_clip[norm] = VisibleMoves(self.simulation, norm)
        return self._of_clip[norm]

    @cached_property
    def _examples(self) -> tuple[Tensor, Tensor]:
        parts = (self.federation.clients, self.federation.test, self.federation.shadow)
        chosen = [(part, torch.linspace(0, len(part.x) - 1, min(_EXAMPLES, len(part.x))).long()) for part in parts]
        x, y = (torch.cat([getattr(part, name).cpu()[index] for part, index in chosen]) for name in ("x", "y"))
        return x[:_EXAMPLES], y[:_EXAMPLES]

    def clusters(self, group: int) -> int:
        """The clients that train the model of a group's clients, where clusters find the groups."""
        clients, groups = len(self.federation), len(self.federation.groups_with_clients)
        of_group = int((self.federation.group == group).sum())
        if self.has(CFL, PACFL):
            return of_group
        models = next((int(getattr(base, "clusters")) for base in self.bases if hasattr(base, "clusters")), 1)  # noqa: B009
        if models == 1 or self.has(FedSoft, FedEM, FedRC):
            return clients
        return ceil(of_group / (models // groups)) if models >= groups else ceil(clients / models)

    def moves(self, view: str, size: int, clients: int) -> Moves:
        """What a view sees of clients with ``size`` examples: of one, or of a sum of so many."""
        local, participation = self.local, self.participation
        passes, steps = local.passes_of(size), local.steps_of(size)
        rounds, share = self.simulation.rounds, min(1.0, steps * local.batch(size) / size)
        if view == SERVER:
            rounds, clients, participation = max(1, round(participation * rounds)), 1, 1.0
        else:
            share *= participation
        summed, merged = max(1.0, clients * participation), 1
        if view == OUTSIDER:
            passes, steps, merged, rounds = passes * rounds, steps * rounds, rounds, 1
            # Of what was trained on in any of them.
            share = 1 - (1 - share) ** merged
        noise, gradient_noise = self.noise(size, steps, passes, summed)
        return Moves(
            size * clients, rounds, passes, merged, share or 1.0, self.copies,
            noise=noise, gradient_noise=gradient_noise, exact=self._exact,
        )  # fmt: skip

    def noise(
        self, size: int, steps: int, passes: int, clients: float, multiplier: float | None = None
    ) -> tuple[float, float]:
        """The noise of a move in units of what one example adds at most, and of gradients.

        Args:
            size: of each client's examples.
            steps: of each client.
            passes: of them.
            clients: of the sum.
            multiplier: of DP-SGD; None: as it is configured.
        """
        rule = self.local.gradient_privacy
        if multiplier is None:
            multiplier = 0.0 if rule is None else rule.noise_multiplier
        private = multiplier * sqrt(steps * clients) / passes
        # Of the update's own length, which no example exceeds.
        laplace = self._laplace * sqrt(clients / self.simulation.setup.model.parameters)
        length = self.gradients.update_length(size) if laplace else 0.0
        scaled = private * self.clip if private else 0.0
        return sqrt(private**2 + laplace**2), sqrt(scaled**2 + (laplace * length) ** 2)

    @property
    def _laplace(self) -> float:
        """The length of each client's noise in lengths of its update."""
        filtered = self.simulation.setup.client_filter
        return (filtered.noise_multiplier or 0.0) if isinstance(filtered, LaplaceNoise) else 0.0

    @property
    def _exact(self) -> bool:
        """Whether moves are sums of (error x input), but for noise whose size is known."""
        optimizer, filtered = self.local.optimizer, self.simulation.setup.client_filter
        known = filtered is None or (isinstance(filtered, LaplaceNoise) and filtered.epsilon is None)
        linear = optimizer is None or optimizer.name in _LINEAR_OPTIMIZERS
        return known and linear

    def most(
        self, moves: Moves, layers: Sequence[LayerShape] | None = None, terms: Mapping[str, ExampleTerms] | None = None
    ) -> Exposure:
        """The exposure by the layer that gives most away."""
        exposure = most_exposed(layers or self.layers, moves, self.gradients.terms if terms is None else terms)
        assert exposure is not None
        return exposure
