"""Fault injection: small faults drawn by seed, each against the tests of its room, then against all others.

    python benchmarks/mutants.py build/mutants                # 300 faults; again to resume
    python benchmarks/mutants.py build/mutants --rooms metrics control --count 20

The faults are cosmic-ray's, put into clones of the last commit, never into the working tree. A fault is drawn in two
steps, first a place (file, position, kind of operator), then one of the place's variants, so that arithmetic, which has
eleven variants, does not crowd out the rest. Removed decorators and `|` (nearly always a type) are not drawn; what is
no Python is left out of the draw.

A fault meets the tests of its room that execute its statement (by coverage), the shortest first, up to the first that
fails. What survives meets those of the rest of the suite. ``faults.csv`` has one row per fault, with the test that
caught it.
"""

import argparse
import ast
import csv
import difflib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("metrics", "attacks", "defenses", "control", "engine", "audit", "preflight", "replay", "simulation")
SKIPPED = re.compile(r"RemoveDecorator|VariableInserter|VariableReplacer|BitOr")
ELSEWHERE = ("docs", "examples", "benchmarks")
"""Folders of tests of other things than the rooms, or on processes that coverage does not see."""
SECONDS = 120.0
"""Of tests for one fault in its room, and again in the rest of the suite; without a fault, under coverage."""
COLUMNS = ["seed", "file", "line", "fault", "caught by", "test", "change"]


class Fault(NamedTuple):
    """A variant of one of cosmic-ray's operators at a place."""

    file: str
    line: int
    column: int
    operator: str
    occurrence: int

    def changed(self, source: str) -> str:
        """The source with the fault."""
        from cosmic_ray.mutating import mutate_code  # noqa: PLC0415 (of an extra)
        from cosmic_ray.plugins import get_operator  # noqa: PLC0415 (of an extra)

        return mutate_code(source, get_operator(self.operator)(), self.occurrence)

    def is_python(self, source: str) -> bool:
        """Whether the source with the fault has Python's syntax: the `*` before keywords is taken for an operator."""
        try:
            ast.parse(self.changed(source))
        except SyntaxError:
            return False
        return True


def all_faults(clone: Path, rooms: Sequence[str]) -> Iterator[Fault]:
    """Every variant of every operator in the rooms."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path  # noqa: PLC0415 (of an extra)
    from cosmic_ray.plugins import get_operator, operator_names  # noqa: PLC0415 (of an extra)

    operators = {name: get_operator(name) for name in operator_names() if not SKIPPED.search(name)}
    for path in sorted(path for room in rooms for path in (clone / "src" / "shoal" / room).rglob("*.py")):
        nodes = list(ast_nodes(get_ast_from_path(path)))
        for name, operator in operators.items():
            if operator.arguments():
                continue
            places = (start for node in nodes for start, _ in operator().mutation_positions(node))
            for occurrence, (line, column) in enumerate(places):
                yield Fault(str(path.relative_to(clone)), line, column, name, occurrence)


def draw_faults(faults: Iterable[Fault], count: int, seed: int) -> list[Fault]:
    """``count`` faults at different places, or all places."""
    places: dict[tuple[str, int, int, str], list[Fault]] = defaultdict(list)
    for fault in faults:
        places[*fault[:3], fault.operator.split("_")[0]].append(fault)
    draw = random.Random(seed)
    return [draw.choice(sorted(places[place])) for place in draw.sample(sorted(places), min(count, len(places)))]


def statement_lines(source: str, line: int) -> range:
    """The lines of the statement that ``line`` is in; of a compound statement, those before its body."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt | ast.ExceptHandler) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            # The statements come from the outside to the inside: the last that fits is the smallest.
            best = range(node.lineno, max(node.lineno, last or 0) + 1) if line <= max(node.lineno, last or 0) else best
    return best


@dataclass(frozen=True)
class SuiteCoverage:
    """Who executes what: ``lines`` maps a file to its lines and their tests, ``seconds`` a test to its time."""

    lines: Mapping[str, Mapping[int, frozenset[str]]]
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, out: Path, names: Iterable[str]) -> "SuiteCoverage":
        """Read what `measure_coverage` has written; a test's set-up counts for all tests of its file."""
        from coverage import CoverageData  # noqa: PLC0415 (of an extra)

        seconds: Counter[str] = Counter()
        lines: dict[str, dict[int, frozenset[str]]] = defaultdict(lambda: defaultdict(frozenset))
        for name in names:
            for duration, test in re.findall(
                r"^([\d.]+)s \w+ +(.+)$", (out / f"coverage.{name}.log").read_text(), re.M
            ):
                seconds[test] += float(duration)
            data = CoverageData(str(out / f"coverage.{name}"))
            data.read()
            of_file: dict[str, set[str]] = defaultdict(set)
            for test in {context.rpartition("|")[0] for context in data.measured_contexts() if context}:
                of_file[test.partition("::")[0]].add(test)
            for path in data.measured_files():
                of_lines = lines[path[path.rindex("src/shoal/") :]]
                for line, contexts in data.contexts_by_lineno(path).items():
                    parts = [context.rpartition("|") for context in contexts if context]
                    of_lines[line] |= frozenset[str]().union(
                        *({test} if phase == "run" else of_file[test.partition("::")[0]] for test, _, phase in parts)
                    )
        return cls(lines, seconds)

    def tests(self, file: str, source: str, line: int) -> list[str]:
        """The tests that execute the statement of a line, the shortest first.

        Of a statement that runs at import, and behind a cache, the tests that execute anything of the file.
        """
        executed = self.lines.get(file, {})
        parts = [frozenset[str]().union(*(executed.get(n, ()) for n in statement_lines(source, line)))]
        if not parts[0] or "cache" in source:
            parts.append(frozenset[str]().union(*executed.values()) - parts[0])
        return [test for part in parts for test in sorted(part, key=lambda test: (self.seconds[test], test))]


def run_pytest(clone: Path, arguments: Sequence[str], seconds: float | None = None, **more: str) -> tuple[int, str]:
    """The exit code and the output of pytest on the package of a clone, ended after ``seconds``."""
    own = {
        "PYTHONPATH": str(clone / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=clone,
        env={**os.environ, **own, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return -signal.SIGKILL, ""
    return process.returncode, text


def measure_coverage(clone: Path, out: Path, name: str, tests: Sequence[str]) -> None:
    """Write the coverage of tests, and their times, unless that is done."""
    log = out / f"coverage.{name}.log"
    if log.exists():
        return
    (out / "coverage.rc").write_text("[run]\nsource = shoal\n")
    options = ["--cov=shoal", f"--cov-config={out / 'coverage.rc'}", "--cov-context=test", "--cov-report="]
    code, text = run_pytest(clone, [*options, "--durations=0", *tests], COVERAGE_FILE=str(out / f"coverage.{name}"))
    if code:
        sys.exit(f"the tests of {name} fail without a fault:\n{text[-2000:]}")
    log.write_text(text)


def catching_test(fault: Fault, clone: Path, out: Path, tests: Sequence[str], seconds: float) -> str:
    """The first of the tests that fails with the fault in the clone; "" if none does."""
    if not tests:
        return ""
    path, listed = clone / fault.file, out / f"{clone.name}.tests"
    source = path.read_text()
    try:
        path.write_text(fault.changed(source))
        # The names of some parameters change with a fault: then without them.
        for names in (tests, dict.fromkeys(test.partition("[")[0] for test in tests)):
            listed.write_text("\n".join(names))
            code, text = run_pytest(clone, ["-x", f"@{listed}"], seconds)
            if code != pytest.ExitCode.USAGE_ERROR or "ERROR: not found" not in text:
                break
    finally:
        path.write_text(source)
    if code == -signal.SIGKILL:
        return "no end"
    if code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        return ""
    first = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    return first[1] if first else f"exit code {code}"


def change(fault: Fault, source: str) -> str:
    """The fault as ``before -> after``."""
    lines = difflib.unified_diff(source.splitlines(), fault.changed(source).splitlines(), n=0, lineterm="")
    return " -> ".join(line[1:].strip() for line in list(lines)[3:])


def share_of(seconds: Mapping[str, float], tests: Iterable[str]) -> tuple[list[str], float]:
    """The first of the tests, as many as take `SECONDS` without a fault, and after how long they have no end."""
    chosen, total = [], 0.0
    for test in tests:
        total += seconds[test]
        if chosen and total > SECONDS:
            break
        chosen.append(test)
    return chosen, 60 + 4 * total


def main() -> None:
    """Draw the faults, run their tests, and print what was caught."""
    parser = argparse.ArgumentParser(description="Fault injection: small faults, each against the tests that run it.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS))
    parser.add_argument("--room-only", action="store_true", help="no tests of the rest of the suite")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    clones = [out / f"clone-{job}" for job in range(arguments.jobs)]
    for clone in clones:
        if not clone.exists():
            subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
        subprocess.run(["git", "checkout", "--quiet", "--", "."], cwd=clone, check=True)
    own = [*(f"tests/{room}" for room in ROOMS), "tests/laws", *(f"src/shoal/{room}" for room in ROOMS)]
    rest = [str(path.relative_to(clones[0])) for path in sorted(clones[0].glob("tests/*")) if is_rest(path)]
    suites = {"rooms": own} if arguments.room_only else {"rooms": own, "rest": rest}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(lambda clone, suite: measure_coverage(clone, out, *suite), clones * 2, suites.items()))
    coverage, stages = SuiteCoverage.of(out, suites), ("room",) if arguments.room_only else ("room", "others")
    drawn = out / f"faults-{arguments.seed}.json"
    if not drawn.exists():
        faults = draw_faults(all_faults(clones[0], arguments.rooms), arguments.count, arguments.seed)
        drawn.write_text(
            json.dumps([fault for fault in faults if fault.is_python((clones[0] / fault.file).read_text())])
        )
    faults = [Fault(*fault) for fault in json.loads(drawn.read_text())]
    before: set[int] = set()
    for stage in stages:
        path = out / f"caught-{arguments.seed}.{stage}.csv"
        run_faults({n: fault for n, fault in enumerate(faults) if n not in before}, stage, coverage, clones, path)
        before |= {number for number, test in caught(path).items() if test}
    summary(faults, clones[0], out, arguments.seed, stages)


def is_rest(path: Path) -> bool:
    """Whether a file or folder of tests is of the rest of the suite."""
    tests = path.is_dir() or path.name.startswith("test_")
    return tests and path.name not in {*ROOMS, *ELSEWHERE, "laws", "test_house.py", "__pycache__"}


def caught(path: Path) -> dict[int, str]:
    """What `run_faults` has written: for numbers of faults, the test that caught it, or ""."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {int(number): test for number, test in csv.reader(file)}


def run_faults(
    faults: Mapping[int, Fault], stage: str, coverage: SuiteCoverage, clones: Sequence[Path], path: Path
) -> None:
    """Run the tests of each fault's room, or the others, and write the test that caught it, if any."""
    done = caught(path)
    free: SimpleQueue[Path] = SimpleQueue()
    for clone in clones:
        free.put(clone)

    def run(number: int) -> None:
        fault, clone = faults[number], free.get()
        tests = chosen_tests(fault, stage, coverage, (clone / fault.file).read_text())
        test = catching_test(fault, clone, path.parent, *share_of(coverage.seconds, tests))
        with path.open("a", newline="") as file:
            csv.writer(file).writerow([number, test])
        print(f"{number:4} {fault.file}:{fault.line} {test or 'survived'}", flush=True)
        free.put(clone)

    with ThreadPoolExecutor(len(clones)) as pool:
        list(pool.map(run, (number for number in faults if number not in done)))


def chosen_tests(fault: Fault, stage: str, coverage: SuiteCoverage, source: str) -> list[str]:
    """The tests that execute the fault, of its room, with the laws, or all others."""
    own = {Path(fault.file).parts[2], "laws"}
    tests = coverage.tests(fault.file, source, fault.line)
    return [test for test in tests if (stage == "room") != own.isdisjoint(Path(test.partition("::")[0]).parts[1:3])]


def summary(faults: Sequence[Fault], clone: Path, out: Path, seed: int, stages: Iterable[str]) -> None:
    """Write `faults.csv`, and print how many faults of each room were caught."""
    by_suite = {name: caught(out / f"caught-{seed}.{name}.csv") for name in stages}
    rows, total, counts = [], Counter[str](), Counter[tuple[str, str]]()
    for number, fault in enumerate(faults):
        room = Path(fault.file).parts[2]
        by = next((name for name, tests in by_suite.items() if tests.get(number)), "")
        total[room] += 1
        counts[room, by] += 1
        what = "" if by else change(fault, (clone / fault.file).read_text())
        rows.append([seed, fault.file, fault.line, fault.operator.removeprefix("core/"), by or "none"])
        rows[-1] += [by_suite[by][number] if by else "", what]
    with (out / f"faults-{seed}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    for room in [*sorted(total), ""]:
        said = ", ".join(f"{sum(counts[r, by] for r in total if room in {r, ''})} by {by}" for by in by_suite)
        print(f"{room or 'all':12} of {total[room] or total.total():4}: {said}")


if __name__ == "__main__":
    main()
