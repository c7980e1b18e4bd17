"""Logging to Weights & Biases, without an account unless asked for."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from shoal.core.settings import settings
from shoal.metrics.summary import FlatSummary
from shoal.runs.sinks.sink import LoggedRun


@settings
class WandB:
    """A sink for Weights & Biases (``pip install 'shoal[wandb]'``).

    Rounds are steps, the configuration is the config, and `summary.json` becomes the summary. Offline, the files lie in
    ``wandb/offline-run-*``; ``wandb sync`` sends them. A resumed run has the id of its first rounds: offline it is a
    further folder, and ``wandb sync --append`` puts both into one run.

    Args:
        mode: "offline", or "online", for which you are logged in (``wandb login``).
        project: its name there.
        folder: in which the folder ``wandb`` is made; None: the run's directory, or else the current one.

    Example:
        >>> import shoal
        >>> shoal.WandB(project="hospitals")
        WandB(project='hospitals')
    """

    mode: Literal["offline", "online"] = "offline"
    project: str = "shoal"
    folder: str | Path | None = None

    def open_log(self, run: LoggedRun) -> "_Tracked":
        """Begin a run, or go on in that of the same directory."""
        wandb: Any = import_module("wandb")  # takes a second
        folder = Path(self.folder or run.out or ".")
        folder.mkdir(parents=True, exist_ok=True)
        # By the time in their names; an id has no hyphen.
        earlier = sorted(path.name for path in folder.glob("wandb/*run-*-*")) if run.rounds else []
        opened = wandb.init(
            mode=self.mode,
            project=self.project,
            name=run.title,
            dir=str(folder),
            id=earlier[-1].rpartition("-")[2] if earlier else None,
            resume="allow" if earlier and self.mode == "online" else None,
            config=dict(run.parameters),
            # What is printed stays on the terminal alone, and a second run of the process has a run of its own.
            settings=wandb.Settings(silent=True, console="off"),
            reinit="create_new",
        )
        return _Tracked(opened)


class _Tracked:
    """An open run of W&B."""

    def __init__(self, run: Any) -> None:  # noqa: ANN401 - of a package that may be absent
        self._run = run

    def write(self, round_number: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round."""
        self._run.log(dict(figures), step=round_number)

    def close(self, summary: FlatSummary | None) -> None:
        """Log the summary and end the run."""
        self._run.summary.update(dict(summary or {}))
        self._run.finish(exit_code=1 if summary is None else 0)
