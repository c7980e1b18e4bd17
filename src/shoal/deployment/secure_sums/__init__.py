"""Secure aggregation by cluster: the server learns sums over clients, neither an update nor a choice of cluster.

Protocol after Bonawitz et al., CCS 2017 (doi 10.1145/3133956.3133982), of five exchanges (`protocol_messages`). Each
client sends ``[count of each cluster | one block for each cluster]``, zero but for its own cluster, plus masks: one
with each other client, which cancel in the sum, and for the counts and each block one of its own, whose seed is shared
between all clients (Shamir). After Bell et al., CCS 2020, keys are signed by the nodes' long-term keys.

Differences, which are ours: counts are opened first, and by every client itself; a client gives away its shares of the
seeds of a block only where at least ``min_clients`` clients of those who are in the sum chose that cluster, so smaller
clusters' blocks stay masked whatever the server says. That check shows also that all clients agree on who is in the
sum, because the server can open either the seed or the mask key of a client, not both (`threshold_of`).

What an active server can do, and what it cannot, is in docs/security.md.
"""
