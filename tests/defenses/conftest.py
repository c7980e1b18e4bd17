"""Networks that the loop and vmap train: DP-SGD loops them, where gradients that are written out need no loop."""

from own_mlp import mlp, model

__all__ = ["mlp", "model"]
