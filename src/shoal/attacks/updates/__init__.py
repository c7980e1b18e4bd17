"""Attacks on clients' updates: membership, source, and the identity and preferences of clients."""
