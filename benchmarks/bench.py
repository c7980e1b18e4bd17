"""The speed comparison: Shoal beside pfl, Flower and plain PyTorch on the same works (`rows.py`), in Markdown.

Every side of every row is a process of its own. The sides of a row run in turn and the whole sequence is repeated, so
that a busy machine is busy for all of them; a side that others disturbed is run again. The first call makes the
peers' environments in `.bench/`, which takes some minutes and 2 GB.

    python benchmarks/bench.py [--rounds 7] [--repeats 3] [--only NAME ...] [--no-peers] [--out FILE.md]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import machine
import peers
from comparisons import ROWS, Row, Side
from systems.clock import machine_cpu_seconds
from systems.work import WORKS
from tables import DISTURBED, cell, pool, table, verdict

SIDES = Path(__file__).resolve().parent / "systems"
_TINY = ("--clients", "10", "--examples", "20", "--random-data")


def main() -> None:
    """Measure, and print the tables."""
    options = arguments_of(sys.argv[1:])
    before = machine.probe(sys.executable)
    chosen = round_metrics(options, cuda=before["cuda"])
    outcomes: dict[tuple[str, str], list[Mapping | str]] = {}
    for repeat in range(options.repeats):
        for row in chosen:
            for side in row.sides:
                tell(f"{repeat + 1}/{options.repeats} {row.name}: {side.label}")
                outcome = run_quietly(row, side, options)
                tell(f"  {outcome}" if isinstance(outcome, str) else f"  {outcome['seconds']} s")
                outcomes.setdefault((row.name, side.label), []).append(outcome)
                if not options.tiny:
                    keep(row, side, repeat, outcome)
    after = machine.probe(sys.executable)
    settings = f"`{' '.join(['python', 'benchmarks/bench.py', *sys.argv[1:]])}`"
    pages = ["# Speed", machine.header(before, after, options.threads, settings)]
    if options.tiny:
        pages.append("Tiny works, to see that everything runs: nothing here is a measurement.")
    for row in chosen:
        measured = {side.label: pool(outcomes[row.name, side.label]) for side in row.sides}
        goals = "\n".join(f"- {verdict(goal, measured)}" for goal in row.goals)
        pages += [f"## {row.name}", row.title, table(row, measured), *([goals] if goals else [])]
    if not before["cuda"]:
        pages.append("The GPU rows were not measured: PyTorch finds no GPU here.")
    text = "\n\n".join(pages)
    print(text)
    if options.out is not None:
        options.out.write_text(f"{text}\n", encoding="utf-8")


def arguments_of(words: list[str]) -> argparse.Namespace:
    """What the command line says."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=int, default=7, help="rounds counted in a repeat, after one for warming up")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], metavar="NAME")
    options.add_argument("--no-peers", action="store_true", help="only Shoal and plain PyTorch")
    options.add_argument("--threads", type=int, default=2, help="Shoal's worker threads")
    options.add_argument("--out", type=Path, help="also write the page here")
    options.add_argument("--pfl-python", type=Path, help="an interpreter that has pfl, instead of .bench/pfl")
    options.add_argument("--flower-python", type=Path, help="the same for Flower")
    options.add_argument(
        "--blazefl-python", type=Path, help="an interpreter that has BlazeFL: Python 3.14, free-threaded"
    )
    options.add_argument("--patience", type=float, default=60, help="seconds to wait for others to be quiet, a side")
    options.add_argument("--limit", type=float, default=1800, help="seconds that one side may take")
    options.add_argument("--tiny", action="store_true", help="see that every side runs; measures nothing")
    return options.parse_args(words)


def round_metrics(options: argparse.Namespace, cuda: bool) -> list[Row]:
    """The rows and sides that are asked for and that can be run."""
    asked = [row for row in ROWS if (options.only is None or row.name in options.only) and (cuda or not row.cuda)]
    if not options.no_peers:
        return asked
    kept = [replace(row, sides=tuple(side for side in row.sides if side.environment == "shoal")) for row in asked]
    return [row for row in kept if row.sides]


def run_quietly(row: Row, side: Side, options: argparse.Namespace) -> Mapping | str:
    """`run`, again when others disturbed it; of two tries the less disturbed counts."""
    best: Mapping | None = None
    for _ in range(1 if options.tiny else 2):
        wait_for_quiet(0 if options.tiny else options.patience)
        outcome = run(row, side, options)
        if isinstance(outcome, str):
            return outcome
        if best is None or outcome["others_cores"] < best["others_cores"]:
            best = outcome
        if best["others_cores"] <= DISTURBED:
            break
        if not options.tiny:
            tell(f"  others kept {outcome['others_cores']:.2f} cores busy")
    assert best is not None
    return best


def run(row: Row, side: Side, options: argparse.Namespace) -> Mapping | str:
    """What one process of a side printed, or a sentence on why it failed."""
    try:
        command = command_of(row, side, options)
        process = subprocess.Popen(
            [*command, "--began", str(time.time())],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except Exception as error:  # whatever is missing, the other sides go on
        return cell(str(error))
    try:
        printed, said = process.communicate(timeout=options.limit)
    except subprocess.TimeoutExpired:
        return f"took more than {options.limit:.0f} s"
    finally:
        # Ray and torch.distributed start processes of their own, which an interrupted side would leave behind.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return outcome_of(process.returncode, printed, said)


def outcome_of(code: int, printed: str, said: str) -> Mapping | str:
    """The line of JSON in what a side printed; where it ended badly, the last line of what it ``said`` on stderr."""
    lines = [line for line in printed.splitlines() if line.startswith('{"side"')]
    if code == 0 and lines:
        return json.loads(lines[-1])
    words = [line for line in said.splitlines() if line.strip()] or ["no word why"]
    return cell(f"exit code {code}: {words[-1]}")


def command_of(row: Row, side: Side, options: argparse.Namespace) -> list[str]:
    """The command that runs a side; makes what it needs if that is missing."""
    given = {
        "pfl": options.pfl_python,
        "flower": options.flower_python,
        "blazefl": options.blazefl_python,
        "shoal": Path(sys.executable),
    }
    if side.environment == "blazefl" and options.blazefl_python is None:
        raise RuntimeError("needs an interpreter of its own: --blazefl-python")
    python = given[side.environment] or peers.python_of(side.environment)
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={side.processes}"]
    command = [str(python), *(several if side.processes > 1 else []), str(SIDES / f"{side.script}.py")]
    command += [*side.arguments, "--rounds", str(row.rounds_of(side, options.rounds))]
    if side.script == "shoal_side":
        command += ["--threads", str(options.threads)]
    if options.tiny:
        return [*command, *_TINY]
    if WORKS[side.arguments[0]].fashion:
        command += ["--data", str(peers.fashion_mnist())]
    return command


def wait_for_quiet(patience: float) -> None:
    """Wait until others leave the machine alone for a second, ``patience`` seconds at most."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        busy, began = machine_cpu_seconds(), time.monotonic()
        time.sleep(1)
        if (machine_cpu_seconds() - busy) / (time.monotonic() - began) < DISTURBED:
            return


def keep(row: Row, side: Side, repeat: int, outcome: Mapping | str) -> None:
    """Add an outcome to `.bench/outcomes.jsonl`, so that an interrupted comparison is not lost."""
    line = {"row": row.name, "label": side.label, "repeat": repeat, "at": time.time(), "outcome": outcome}
    with (peers.home() / "outcomes.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def tell(text: str) -> None:
    """Progress, beside the page."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
