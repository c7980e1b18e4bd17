"""Local training of many clients: the loop and vmap backends, optimizers, and gradients per example."""
