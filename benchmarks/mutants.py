"""Fault injection: small faults drawn by seed, each against the tests of its room (cosmic-ray).

    python benchmarks/mutants.py build/mutants                # 300 faults; again to resume
    python benchmarks/mutants.py build/mutants --rooms metrics control --count 20

The faults are put into clones of the last commit, never into the working tree. A fault is drawn in two steps, first a
place (file, position, kind of operator), then one of the place's variants, so that arithmetic, which has eleven
variants, does not crowd out the rest. First the tests of the room that execute the faulty line are run (by coverage,
the shortest first), then, if all pass, all tests of the room. Removed decorators and `|` (nearly always a type) are not
drawn. `faults.csv` has one row per fault, `survivors.diff` the faults that no test caught.
"""

import argparse
import csv
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("metrics", "attacks", "defenses", "control", "engine", "audit", "simulation")
SKIPPED = re.compile(r"RemoveDecorator|VariableInserter|VariableReplacer|BitOr")
SECONDS = 400.0
"""After which the tests of a fault are ended; the fault counts as caught, since it does not end."""


def room_tests(room: str) -> list[str]:
    """The tests of a room: its folder of tests, the laws, and the examples of its docstrings."""
    return [f"tests/{room}", "tests/laws", f"src/shoal/{room}"]


def run_pytest(clone: Path, arguments: Sequence[str], **environment: str) -> int:
    """The exit code of pytest on the package of a clone."""
    variables = {**os.environ, "PYTHONPATH": str(clone / "src"), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=clone, env=variables, check=False).returncode


def cosmic_ray(*arguments: object) -> list[str]:
    """A command of cosmic-ray, by the interpreter that runs this script."""
    return [sys.executable, "-m", "cosmic_ray.cli", *map(str, arguments)]


def draw_sample(clone: Path, out: Path, rooms: Sequence[str], count: int, seed: int, jobs: int) -> None:
    """Write a session of cosmic-ray per job, with its share of ``count`` faults."""
    from cosmic_ray.work_db import WorkDB, use_db  # noqa: PLC0415 (of an extra)

    settings: dict[str, Any] = {
        "module-path": [f"src/shoal/{room}" for room in rooms],
        "timeout": SECONDS,
        "excluded-modules": [],
        "test-command": f"{sys.executable} {Path(__file__).resolve()} {out} --test",
        "distributor": {"name": "local"},
    }
    configuration, whole = out / "cosmic-ray.toml", out / "all.sqlite"
    configuration.write_text(tomli_w.dumps({"cosmic-ray": settings}))
    subprocess.run(cosmic_ray("init", configuration, whole), cwd=clone, check=True)
    places: dict[tuple[str, tuple[int, int], str], list[Any]] = defaultdict(list)
    with use_db(whole, WorkDB.Mode.open) as database:
        for item in database.work_items:
            (fault,) = item.mutations
            if not SKIPPED.search(fault.operator_name):
                family = fault.operator_name.split("_")[0]
                places[str(fault.module_path), fault.start_pos, family].append(item)
    draw = random.Random(seed)
    chosen = [
        draw.choice(
            sorted(places[place], key=lambda item: (item.mutations[0].operator_name, item.mutations[0].occurrence))
        )
        for place in draw.sample(sorted(places), min(count, len(places)))
    ]
    for job in range(jobs):
        with use_db(out / f"session-{job}.sqlite") as database:
            database.add_work_items(chosen[job::jobs])
    whole.unlink()


def changed_lines(clone: Path) -> tuple[str, range]:
    """The faulty file of a clone, relative to it, and the lines where it differs from the commit."""
    diff = subprocess.run(["git", "diff", "-U0"], cwd=clone, capture_output=True, text=True, check=True).stdout
    name, hunk = (
        re.search(r"^--- a/(.+)$", diff, re.MULTILINE),
        re.search(r"^@@ -(\d+)(?:,(\d+))? ", diff, re.MULTILINE),
    )
    if name is None or hunk is None:
        sys.exit("no fault in this clone")
    first = int(hunk[1])
    return name[1], range(first, first + int(hunk[2] or 1))


def tests_of_lines(coverage: Path, file: str, lines: Iterable[int]) -> list[str]:
    """Node ids of the tests that execute one of the lines, those that execute least of the package first."""
    data = CoverageData(str(coverage))
    data.read()
    sizes: Counter[str] = Counter()
    for path in data.measured_files():
        for contexts in data.contexts_by_lineno(path).values():
            sizes.update(context.rpartition("|")[0] for context in contexts if context)
    (path,) = [path for path in data.measured_files() if path.endswith(f"/{file}")] or [""]
    by_line = data.contexts_by_lineno(path) if path else {}
    tests = {context.rpartition("|")[0] for line in lines for context in by_line.get(line, []) if context}
    return sorted(tests, key=lambda test: (sizes[test], test))


def run_tests(clone: Path, out: Path) -> int:
    """The exit code of the tests of the fault in a clone: 1 where one fails."""
    file, lines = changed_lines(clone)
    room = Path(file).parts[2]
    nearest = tests_of_lines(out / f"coverage.{room}", file, lines)
    code = run_pytest(clone, ["-x", *nearest[:400]]) if nearest else 0
    # 4: a test whose name has changed with the fault, 5: none was collected; neither has caught anything.
    return code if code not in {0, 4, 5} else run_pytest(clone, ["-x", *existing(clone, room_tests(room))])


def existing(clone: Path, folders: Iterable[str]) -> list[str]:
    """Those of the folders that the clone has."""
    return [folder for folder in folders if (clone / folder).exists()]


def summary(out: Path, jobs: int) -> None:
    """Write `faults.csv` and `survivors.diff`, and print how many faults each room's tests caught."""
    from cosmic_ray.work_db import WorkDB, use_db  # noqa: PLC0415 (of an extra)

    caught: Counter[str] = Counter()
    drawn: Counter[str] = Counter()
    rows, survivors = [], []
    for job in range(jobs):
        with use_db(out / f"session-{job}.sqlite", WorkDB.Mode.open) as database:
            for item, result in database.completed_work_items:
                (fault,) = item.mutations
                room, survived = fault.module_path.parts[2], result.test_outcome.value == "survived"
                drawn[room] += 1
                caught[room] += not survived
                rows.append(
                    [str(fault.module_path), fault.start_pos[0], fault.operator_name, result.test_outcome.value]
                )
                survivors += [result.diff] if survived else []
    with (out / "faults.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["file", "line", "fault", "outcome"], *sorted(rows)])
    (out / "survivors.diff").write_text("\n\n".join(survivors))
    for room in sorted(drawn):
        print(f"{room:12} {caught[room]:4} of {drawn[room]:4} caught")
    print(f"{'all':12} {caught.total():4} of {drawn.total():4} caught ({caught.total() / max(1, drawn.total()):.1%})")


def main() -> None:
    """Draw the faults, run their tests, and print what was caught."""
    parser = argparse.ArgumentParser(description="Fault injection: small faults, each against the tests of its room.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS))
    parser.add_argument("--test", action="store_true", help="run the tests of the fault in this folder (internal)")
    arguments = parser.parse_args()
    out, jobs = arguments.out.resolve(), arguments.jobs
    if arguments.test:
        sys.exit(run_tests(Path.cwd(), out))
    out.mkdir(parents=True, exist_ok=True)
    clones = [out / f"clone-{job}" for job in range(jobs)]
    for clone in clones:
        shutil.rmtree(clone, ignore_errors=True) if not (clone / "src").exists() else None
        if not clone.exists():
            subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
        subprocess.run(["git", "checkout", "--quiet", "--", "."], cwd=clone, check=True)
    rooms = [room for room in arguments.rooms if (clones[0] / "src" / "shoal" / room).exists()]
    for room in rooms:
        coverage = out / f"coverage.{room}"
        if not coverage.exists():
            print(f"coverage of the tests of {room}", file=sys.stderr)
            options = ["--cov=shoal", "--cov-context=test", "--cov-report=", *existing(clones[0], room_tests(room))]
            if run_pytest(clones[0], options, COVERAGE_FILE=str(coverage)):
                coverage.unlink(missing_ok=True)
                sys.exit(f"the tests of {room} fail without a fault")
    if not (out / "session-0.sqlite").exists():
        draw_sample(clones[0], out, rooms, arguments.count, arguments.seed, jobs)
    running = [
        subprocess.Popen(cosmic_ray("exec", out / "cosmic-ray.toml", out / f"session-{job}.sqlite"), cwd=clones[job])
        for job in range(jobs)
    ]
    for process in running:
        process.wait()
    summary(out, jobs)


if __name__ == "__main__":
    main()
