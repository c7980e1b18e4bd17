"""A federation on this machine by one command: SuperLink, nginx, SuperNodes, a few rounds, the report, and their end.

    python experiments/federation/on_loopback.py --out runs/federation

As docs/deployment.md says, but for the addresses: TLS, registered keys, the front, and nodes that run no code of the
server's. In the end the models are compared with the simulation's.
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

import torch
from certificates import make_certificates
from processes import APP, NGINX, Loopback, Programs, status
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from safetensors.torch import load_file

from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.core.errors import InputError, ShoalError, require
from shoal.engine import Engine, State
from shoal.simulation.play import initial_state, move_to_engine, run_rounds

_LIMIT = 900.0
"""Seconds after which something is wrong."""


LESSON = """
{same}
{stranger}
{clients} SuperNodes ran the installed Shoal; of the package that the server sent them nothing was unpacked
in each of {rounds} rounds the server saw {seen}
  it did not see its examples, its limit, its weights of loss and risk, and its epsilon
look at  {out}/report.html     what each model is worth, and who attacked it with what success
         {out}/rounds.csv      each model in each round; clients.csv: who chose what; events.csv: who came and missed
         {out}/*.log           what server and nodes said
then     shoal run {config} && shoal audit runs/{name}     what an attacker finds in the same models
         docs/deployment.md    the same on machines of your own; docs/security.md: what was tried against it
"""


def federate(config: Path, out: Path, console: Console) -> None:
    """Run ``config`` with a SuperNode for each of its clients on loopback, and show who trains what.

    Args:
        config: of a set that is dealt out.
        out: the run's directory, to make.
        console: to show it on.

    Raises:
        InputError: a configuration that has clients of its own, or ``out`` exists.
        ShoalError: a program failed.
    """
    partition = read_config(config).data.partition
    require(partition is not None, f"{config}: 'data.source' must be a set that is dealt out")
    assert partition is not None
    require(not out.exists(), f"{out}: exists already; choose another --out")
    clients = partition.clients
    with tempfile.TemporaryDirectory(prefix="shoal-federation-") as name, Programs(Path(name)) as programs:
        folder = Path(name)
        keys = folder / "keys"
        make_certificates(keys, clients)
        loopback = Loopback(programs, keys)
        console.print("starting a SuperLink ...")
        loopback.start_server()
        if NGINX is not None:
            loopback.start_front()
        console.print(f"starting {clients} SuperNodes ...")
        for i in range(clients):
            loopback.register(keys / f"node-{i}.pub")
            node = {"partition-id": i, "state-dir": folder / f"client-{i}"}
            loopback.start_node(f"node-{i}", node, key=keys / f"node-{i}")
        refused = None if NGINX is None else status(loopback.door, "/v1/control/start-run", keys / "ca.crt")
        # The clients are new ones, though their names are those of earlier runs.
        run = {"config": config.absolute(), "out": out.absolute(), "ledgers": folder / "ledgers.json"}
        loopback.run(APP, {**run, "min-nodes": clients})
        try:
            _follow(out, programs, clients, console)
        finally:
            if out.is_dir():
                for program in ("superlink", *(f"node-{i}" for i in range(clients))):
                    shutil.copyfile(folder / f"{program}.log", out / f"{program}.log")
    console.print("all programs are ended")
    models, expected = models_in(out, config), simulated(config).models
    # Sums are of integers, whose rounding a simulation has not.
    sums = read_config(config).secure_aggregation is not None
    how = "but for rounding" if sums else "bit for bit"
    same = torch.allclose(models, expected, atol=1e-5, rtol=0) if sums else torch.equal(models, expected)
    seen = "of each client its trained model, its choice and its number of examples"
    lesson = LESSON.format(
        same=f"the models {'are' if same else 'are NOT'} {how} those of the simulation, shoal run {config}",
        seen=f"sums over clusters and no client's part in them: {out}/sums.csv has all of it" if sums else seen,
        stranger="nginx is not here (apt-get install nginx-light): the SuperLink stood on loopback without its front"
        if refused is None
        else f"a stranger who asks at the nodes' door for a run of an own app is refused ({refused}): nginx lets "
        "/v1/fleet/ through alone",
        clients=clients,
        rounds=len({row["round"] for row in _rows(out)}),
        out=out,
        config=config,
        name=config.stem,
    )
    console.print(lesson, markup=False, highlight=False, soft_wrap=True)


def simulated(path: Path) -> State:
    """What the simulator ends with."""
    decided, simulation = build(read_config(path))
    with Engine(simulation.setup.model, threads=1, backend=decided.engine.backend) as engine:
        simulation = move_to_engine(simulation, engine)
        (*_, (now, _)) = run_rounds(simulation, engine, initial_state(simulation, engine))
    return now.state


def models_in(out: Path, path: Path) -> torch.Tensor:
    """The models (K, P) in a run's directory."""
    _, simulation = build(read_config(path))
    tensors, layout = load_file(out / "models.safetensors"), simulation.setup.model.layout
    names, clusters = [slot.name for slot in layout.slots], {name.partition(".")[0] for name in tensors}
    models = [{name: tensors[f"{k}.{name}"] for name in names} for k in range(len(clusters))]
    return torch.stack([layout.pack(model) for model in models])


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
    absent = now.get("waits_for") or [f"{now.get('missing') or clients} clients"]
    assert isinstance(absent, list)
    begun = now.get("round") and not now.get("missing")
    who = Table(title=f"round {now['round']}" if begun else f"waiting for {', '.join(absent)}")
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
        federate(given.config, given.out, Console())
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
