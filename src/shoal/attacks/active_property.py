"""The attacker that trains in its own way: it teaches the model that it trains to tell the property apart.

Source: Melis et al. 2019, arXiv:1805.04049, section V-B (multi-task loss); Kim et al., RAID 2023, equation 1 and
Algorithm 2, line 6 (scale-up).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from shoal.attacks.simulated_updates import schedule_of
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.data.shards import Shards
from shoal.engine import Engine, LocalRandomness, LocalSGD, State
from shoal.models.model import Loss, Model, cross_entropy

ANSWERS = 2
"""With the property, or without."""


@dataclass(frozen=True, eq=False)
class ActivePropertyAttacker:
    """Fills the engine's socket `MaliciousClient`: trains on two losses, the main one and the property's, and sends
    ``gamma * (end - start) + start`` of the weights.

    The last layer is given two more outputs, for the property. They stay with the attacker, one pair a model, and learn
    from round to round (in Melis et al.'s published code they stay as they were drawn, which ``teaches_head`` = False
    does).

    Args:
        client: its id.
        model: the network with those outputs, which loses on both; see `active_property_attacker`.
        plain: the federation's model.
        labels: (M,) int64, of every example of the clients: the main label, plus the number of classes where it holds
            the property.
        models: K.
        gamma: the scale, above 0; 1 scales nothing (the paper: 5 or 10).
        teaches_head: whether the outputs for the property learn too.

    Raises:
        InputError: a value outside its range.
    """

    client: int
    model: Model
    plain: Model
    labels: Tensor
    models: int
    gamma: float = 1.0
    teaches_head: bool = True

    def __post_init__(self) -> None:
        require(self.gamma > 0, f"'property_attack.gamma' must be above 0; got {self.gamma:g}")

    def start(self, stream: Stream) -> Tensor:
        """The outputs for the property of each model, as the network draws them: (K, H)."""
        drawn = (self.model.state_dict(self.model.init(stream("head", k))) for k in range(self.models))
        return torch.stack([self._head(named) for named in drawn])

    def train(
        self, state: State, k: int, shards: Shards, randomness: LocalRandomness, local: LocalSGD, engine: Engine
    ) -> tuple[Tensor, Tensor]:
        """See `shoal.engine.MaliciousClient.train`."""
        assert state.memory is not None
        start = state.models[k]
        both = replace(shards, y=self.labels.to(shards.y.device))
        end = engine.train_other_model(self.model, self._with_head(start, state.memory[k]), both, randomness, local)
        named = self.model.state_dict(end)
        memory = state.memory.clone()
        if self.teaches_head:
            memory[k] = self._head(named)
        for name in self._grown():
            named[name] = named[name][:-ANSWERS]
        moved = self.plain.layout.pack(named) - start
        # Weights alone: batch norm's statistics would leave the range of variances.
        moved[: self.plain.layout.trainable] *= self.gamma
        return start + moved, memory

    def _with_head(self, row: Tensor, head: Tensor) -> Tensor:
        named = self.plain.layout.views(row)
        parts = head.split([ANSWERS * named[name][0].numel() for name in self._grown()])
        for name, part in zip(self._grown(), parts, strict=True):
            named[name] = torch.cat([named[name], part.reshape(ANSWERS, *named[name].shape[1:])])
        return self.model.layout.pack(named)

    def _head(self, named: dict[str, Tensor]) -> Tensor:
        return torch.cat([named[name][-ANSWERS:].flatten() for name in self._grown()])

    def _grown(self) -> list[str]:
        """Names of the tensors that have rows of their own for the property."""
        plain = {slot.name: slot.shape for slot in self.plain.layout.slots}
        return [slot.name for slot in self.model.layout.slots if slot.shape != plain[slot.name]]


def active_property_attacker(
    model: Model, federation: Federation, models: int, *, alpha: float, gamma: float, teaches_head: bool = True
) -> ActivePropertyAttacker:
    """The attacker of a federation with a holding, which trains on ``alpha * main + (1 - alpha) * property``.

    Args:
        model: the federation's.
        federation: with a holding.
        models: K.
        alpha: the weight of the main loss, in [0, 1] (the paper: 0.9; Melis et al.'s alpha is 1 minus this).
        gamma, teaches_head: see `ActivePropertyAttacker`.

    Raises:
        InputError: nobody holds a property, the network has no linear layer, or a value is outside its range.
    """
    require(0 <= alpha <= 1, f"'property_attack.alpha' must be in [0, 1]; got {alpha:g}")
    schedule = schedule_of(federation)
    classes = _last(model.network()).out_features
    return ActivePropertyAttacker(
        client=schedule.attacker,
        model=Model(partial(_grow, model.build), partial(_both, model.loss, classes, alpha)),
        plain=model,
        labels=federation.clients.y.cpu() + classes * schedule.has_property.long(),
        models=models,
        gamma=gamma,
        teaches_head=teaches_head,
    )


def _both(loss: Loss, classes: int, alpha: float, outputs: Tensor, labels: Tensor) -> Tensor:
    """The multi-task loss (B,) of outputs (B, C + 2) and labels (B,) as in `ActivePropertyAttacker.labels`."""
    main = loss(outputs[:, :classes], labels % classes)
    return alpha * main + (1 - alpha) * cross_entropy(outputs[:, classes:], labels // classes)


def _last(network: nn.Module) -> nn.Linear:
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    require(bool(layers), "an active property attack needs a network whose last layer is a torch.nn.Linear")
    return layers[-1]


def _grow(build: Callable[[], nn.Module]) -> nn.Module:
    """The network with `ANSWERS` more outputs."""
    network = build()
    last = _last(network)
    fresh = nn.Linear(last.in_features, last.out_features + ANSWERS, bias=last.bias is not None)
    # In place, so that what hangs on the layer (dropout) stays there.
    last.out_features, last.weight, last.bias = fresh.out_features, fresh.weight, fresh.bias
    return network
