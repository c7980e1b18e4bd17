"""Property inference in clustered federated learning (Kim et al., RAID 2023): attack, partition, metrics, report."""
