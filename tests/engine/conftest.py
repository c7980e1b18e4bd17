"""Networks that the loop and vmap train; those whose gradients are written out are in `test_dense_network.py`."""

from own_mlp import mlp, model

__all__ = ["mlp", "model"]
