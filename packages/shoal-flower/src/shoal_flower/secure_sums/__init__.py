"""Secure aggregation by cluster: the server learns sums over clients, neither an update nor a choice of cluster.

Protocol after Bonawitz et al., CCS 2017 (doi 10.1145/3133956.3133982), of five exchanges (`protocol_messages`). Each
client sends ``[count of each cluster | one block for each cluster]``, zero but for its own cluster, plus masks. Those
with each other client cancel in the sum. The counts and each block also have a mask of the client's own, whose seed is
shared between all clients (Shamir). After Bell et al., CCS 2020, keys are signed by the nodes' long-term keys.

Two things differ here. Counts are opened first, and by every client itself. A client gives away its shares of the seeds
of a block only where at least ``min_clients`` of the clients in the sum chose that cluster, so smaller clusters' blocks
stay masked whatever the server says. That check shows also that all clients agree on who is in the sum, because the
server can open either the seed or the mask key of a client, not both (`threshold_of`).

What an active server can do, and what it cannot, is in docs/security.md.
"""
