"""A federation on this machine by one command: a SuperLink, SuperNodes, a few rounds, the report, and their end.

    python experiments/federation/on_loopback.py --out runs/federation

Run it in the repository: the app that Flower is given is the one of its pyproject.toml.
"""

import argparse
import csv
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from processes import Loopback, Programs
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.config.schema import read_config
from shoal.core.errors import InputError, ShoalError, require

_LIMIT = 900.0
"""Seconds after which something is wrong."""


def federate(config: Path, out: Path, app: Path, console: Console) -> None:
    """Run ``config`` with a SuperNode for each of its clients on loopback, and show who trains what.

    Args:
        config: of a set that is dealt out.
        out: the run's directory, to make.
        app: the folder of the Flower app.
        console: to show it on.

    Raises:
        InputError: a configuration that has clients of its own, or ``out`` exists.
        ShoalError: a program failed.
    """
    partition = read_config(config).data.partition
    require(partition is not None, f"{config}: 'data.source' must be a set that is dealt out")
    assert partition is not None
    require(not out.exists(), f"{out}: exists already; choose another --out")
    require((app / "pyproject.toml").is_file(), f"{app}: has no pyproject.toml; run this in the repository")
    clients = partition.clients
    with tempfile.TemporaryDirectory(prefix="shoal-federation-") as name, Programs(Path(name)) as programs:
        folder = Path(name)
        loopback = Loopback(programs)
        console.print("starting a SuperLink ...")
        loopback.start_server()
        console.print(f"starting {clients} SuperNodes ...")
        for i in range(clients):
            loopback.start_node(f"node-{i}", {"partition-id": i, "state-dir": folder / f"client-{i}"})
        # The clients are new ones, though their names are those of earlier runs.
        run = {"config": config.absolute(), "out": out.absolute(), "ledgers": folder / "ledgers.json"}
        loopback.run(app, {**run, "min-nodes": clients})
        try:
            _follow(out, programs, clients, console)
        finally:
            if out.is_dir():
                for program in ("superlink", *(f"node-{i}" for i in range(clients))):
                    shutil.copyfile(folder / f"{program}.log", out / f"{program}.log")
    console.print(f"all programs are ended; the report is {out / 'report.html'}")


def _follow(out: Path, programs: Programs, clients: int, console: Console) -> None:
    """Show the run until its summary is written."""
    end, seen = time.monotonic() + _LIMIT, 0
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        while not (out / "summary.json").exists():
            stopped = [name for name, program in programs.running.items() if program.poll() is not None]
            failed = _progress(out).get("error")
            if failed:
                raise ShoalError(f"the run failed: {failed}")
            if stopped or time.monotonic() > end:
                what = f"{stopped[0]} ended: {programs.log(stopped[0])[-1000:]}" if stopped else "no end of the run"
                raise ShoalError(what)
            rows = _rows(out)
            if console.is_terminal:
                live.update(_view(out, rows, clients))
            else:
                seen = _print_new(rows, seen, console)
            time.sleep(0.25)
        if console.is_terminal:
            live.update(_view(out, _rows(out), clients))
        else:
            _print_new(_rows(out), seen, console)


def _rows(out: Path) -> list[dict[str, str]]:
    """The rows of ``rounds.csv`` so far."""
    path = out / "rounds.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


def _progress(out: Path) -> dict[str, object]:
    """What the server said last of the round that is going on."""
    path = out / "progress.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _view(out: Path, rows: list[dict[str, str]], clients: int) -> Group:
    """Who trains what in this round, and the models after the last one."""
    now = _progress(out)
    trained, waiting = now.get("trained", {}), now.get("waiting", [])
    who = Table(title=f"round {now.get('round', 0)}" if now else f"waiting for {clients} clients")
    who.add_column("client")
    who.add_column("is")
    if isinstance(trained, dict) and isinstance(waiting, list):
        for name in sorted({*trained, *waiting}):
            who.add_row(name, f"done: model {trained[name]}" if name in trained else "training")
    models = Table(title="models")
    names = [name for name in (rows[-1] if rows else {}) if name.startswith("accuracy.")]
    for head in ("round", "model", "clients", "risk", *names):
        models.add_column(head, justify="right")
    for row in rows[-6:]:
        numbers = [f"{float(row[name] or 'nan'):.3f}" for name in ("risk", *names)]
        models.add_row(row["round"], row["cluster"], row["clients"], *numbers)
    return Group(who, models if rows else Text())


def _print_new(rows: list[dict[str, str]], seen: int, console: Console) -> int:
    """Print what is new since ``seen`` rows, a line a model and round; returns how many there are."""
    for row in rows[seen:]:
        found = {name: float(value or "nan") for name, value in row.items() if name.startswith("accuracy.")}
        accuracies = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
        about = f"round {row['round']} model {row['cluster']}: {row['clients']} clients"
        console.print(f"{about}, risk {float(row['risk']):.3f}, {accuracies}", soft_wrap=True)
    return len(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("experiments/federation/digits.toml"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        federate(given.config, given.out, Path.cwd(), Console())
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except ShoalError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Leave as Ctrl-C does, so that every program is ended."""
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
