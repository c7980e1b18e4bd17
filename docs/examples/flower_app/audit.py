"""The audit of the app: what its server recognises of its clients' examples."""

from task import CLIENTS, Net, load_data

import shoal
import shoal_flower

members = [load_data(client) for client in range(CLIENTS)]
trace = shoal_flower.app_trace("/tmp/shoal-trace", Net(), members, others=load_data(CLIENTS))
files = shoal.audit_trace(trace)
found = files.audit.attacks.query("scope == 'all'").set_index(["view", "attack"])
print(found[["members", "non_members", "auc", "auc.low", "auc.high"]].round(3), files.page, sep="\n")
