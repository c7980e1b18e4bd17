"""Local training of many clients by a loop or by vmap, with optimizers and per-example gradients."""
