"""Secure aggregation by cluster: the server learns sums over clients, but no client's update or choice of cluster.

The protocol follows Bonawitz et al., CCS 2017 (doi 10.1145/3133956.3133982), in five exchanges (`protocol_messages`).
Each client sends ``[count of each cluster | one block for each cluster]``, with zeros except for its own cluster, plus
masks. Pairwise masks of two clients cancel in the sum. Counts and blocks also have self-masks, whose seeds are
secret-shared between all clients (Shamir). As in Bell et al., CCS 2020, nodes sign the keys for a sum with long-term
keys.

Unlike Bonawitz et al., this protocol reveals counts before blocks, and every client computes the counts. A client sends
its shares of a block's seeds only if at least ``min_clients`` clients in the sum chose the cluster, so blocks of
smaller clusters stay masked. Correct counts also prove that all clients have the same list of members, because the
server can reveal only one of a client's two secrets, its seed or its mask key (`threshold_of`).

docs/security.md describes the power of an active server.
"""
