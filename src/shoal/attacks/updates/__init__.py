"""Attacks on what clients send: membership, source, identity and preferences of clients, and reconstruction."""
