"""Events of clients, who come, go, or do not reply: a line for each in the run's log and in ``events.csv``."""

import csv
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shoal.core.atomic_files import open_to_append, write_text
from shoal_flower.messages import plain

LOG = logging.getLogger("shoal")

Kind = Literal["joined", "returned", "left", "missed", "rejected", "refused", "failed"]
COLUMNS = ("time", "round", "kind", "client", "node", "reason")


@dataclass
class Events:
    """The events of a run, added to its file as they happen.

    Args:
        path: of the file; a line is written at once, so that a killed server has lost none.
        counts: how many there were, by kind, in all of the run.
    """

    path: Path
    counts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def open(path: Path) -> "Events":
        """Go on with a run's file, or begin one; a last line that a kill cut off is dropped."""
        counts: Counter[str] = Counter()
        if path.exists():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            if whole != text:
                write_text(path, whole)
            counts.update(row["kind"] for row in csv.DictReader(whole.splitlines()))
        else:
            write_text(path, ",".join(COLUMNS) + "\n")
        return Events(path, counts)

    def add(self, number: int, kind: Kind, client: str, node: int | None, reason: str = "") -> None:
        """Say that something happened in round ``number``; names and reasons may be a stranger's."""
        where, client, reason = "" if node is None else str(node), plain(client), plain(reason)
        LOG.warning(
            "round %d: client %s (node %s) %s%s", number, client, where or "none", kind, reason and f": {reason}"
        )
        self.counts[kind] += 1
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with open_to_append(self.path) as file:
            csv.writer(file, lineterminator="\n").writerow([moment, number, kind, client, where, reason])
