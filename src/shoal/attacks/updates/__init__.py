"""Attacks on what clients send: membership, source, and the identity and preferences of clients."""
