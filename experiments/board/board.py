"""Measures a defence on all federations of a board, a row each federation and seed, and shows it among the others.

    python experiments/board/board.py experiments/board/defences/fewer-rounds.toml --jobs 2
    python experiments/board/board.py                # the table as it stands

board.toml              the seeds, the number of references, and each federation's file and hashes
NAME.toml               a federation: a run's configuration
rows/NAME.csv           the rows of one defence, from `measure`
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from places import RISK, UTILITY, markdown, standings
from pydantic import Field
from rich.console import Console

from shoal.cli.displays import SweepDisplay
from shoal.config.build import resolve
from shoal.config.kinds import require_data
from shoal.config.named_keys import set_keys
from shoal.config.schema import Config, parse_config
from shoal.config.toml_files import key_parts, parse, read_toml
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, ShoalError, quote, require
from shoal.core.processes import Workers, Workplace
from shoal.core.settings import Count, Positive, settings
from shoal.data.content import fingerprint_up_to_rounding
from shoal.data.preferences import VIEWS
from shoal.runs.audits.audit_files import make_directory
from shoal.runs.audits.audit_run import audit_run
from shoal.runs.files import read_run, read_table
from shoal.simulation.measure import CLIENT_COLUMNS
from shoal.sweeps.plan import PlannedRun, dataset_of, planned_runs
from shoal.sweeps.runner import SweepWatch, finish_runs
from shoal.sweeps.sweep_file import SweepPoint

CHANGEABLE = ("model", "algorithm", "local", "defenses", "coordinator", "release", "red_team")
"""Tables of a configuration that a defence may change; the others are the federation and its measurement."""

ENDS = ("", ".low", ".high")

SILENT = ("local", "server-only")
"""Algorithms in which clients neither receive nor send anything."""


@settings
class BoardFederation:
    """A federation of the board.

    Args:
        file: its configuration, beside board.toml.
        configuration: the hash of its keys and values.
        examples: the hash of its examples (`fingerprint_up_to_rounding`) with the first development seed.
    """

    file: str
    configuration: str
    examples: str


@settings
class BoardFile:
    """board.toml.

    Args:
        development_seeds: on which everybody chooses settings.
        judging_seeds: the number of seeds that judge (`Defence.seeds`).
        references: reference federations of each audit.
        federations: by name.
    """

    development_seeds: Annotated[list[Count], Field(min_length=1)]
    federations: Annotated[dict[str, BoardFederation], Field(min_length=1)]
    judging_seeds: Positive = 5
    references: Positive = 2


@settings
class Defence:
    """A defence's file.

    Args:
        name: in the table.
        about: one sentence.
        changes: values by dotted key, for every federation.
        federations: further changes by federation.
    """

    name: str
    about: str
    changes: dict[str, Any] = field(default_factory=dict)
    federations: dict[str, dict[str, Any]] = field(default_factory=dict)

    def seeds(self, count: int) -> tuple[int, ...]:
        """The seeds that judge: from the SHA-256 of the changes, so nobody knows them before the settings are final."""
        return tuple(int(_hash([self.changes, self.federations, i])[:7], 16) for i in range(count))

    def apply(self, table: Mapping[str, Any], federation: str) -> dict[str, Any]:
        """The table of a federation's configuration with the changes of this defence."""
        changed, changes = deepcopy(dict(table)), {**self.changes, **self.federations.get(federation, {})}
        for key in changes:
            require(
                key_parts(key)[:1] in [[section] for section in CHANGEABLE],
                f"'{key}' belongs to the board's federations and their measurement; a defence may change keys of "
                f"{', '.join(CHANGEABLE)}",
            )
        set_keys(changed, changes)
        return changed


@dataclass(frozen=True)
class Board:
    """A board.

    Args:
        folder: of board.toml.
        asked: its content.
        tables: of each federation's configuration, by name.
    """

    folder: Path
    asked: BoardFile
    tables: Mapping[str, Mapping[str, Any]]

    def config(self, federation: str, defence: Defence | None = None) -> Config:
        """A federation's configuration as it is measured, with a defence."""
        table = dict(self.tables[federation])
        if defence is not None:
            table = defence.apply(table, federation)
        table["evaluation"] = {"reference_federations": self.asked.references, "view": VIEWS[0], "every": 1_000_000}
        return parse_config(table, f"{self.folder / self.asked.federations[federation].file}")

    def hashes(self, federation: str, data_dir: Path | None = None) -> tuple[str, str]:
        """The hashes of a federation's configuration and of its examples."""
        config = replace(self.config(federation), seed=self.asked.development_seeds[0])
        examples = resolve(config, dataset_of(config, data_dir)).simulation.federation
        return _hash(self.tables[federation])[:16], fingerprint_up_to_rounding(examples)

    def require_same(self, data_dir: Path | None = None) -> None:
        """Raise `InputError` where a federation is not the one that the rows of this board were measured on."""
        for name, federation in self.asked.federations.items():
            configuration, examples = self.hashes(name, data_dir)
            place = self.folder / federation.file
            require(
                configuration == federation.configuration,
                f"{place}: computes something else than the board's federation '{name}' (hash {configuration}, not "
                f"{federation.configuration}); restore the file",
            )
            require(
                examples == federation.examples,
                f"{place}: its examples are not the board's (hash {examples}, not {federation.examples}); restore the "
                "data",
            )


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_board(folder: Path) -> Board:
    """The board in a folder.

    Raises:
        InputError: a file is missing, or has keys or values that are not allowed.
    """
    asked = parse(BoardFile, read_toml(folder / "board.toml"), str(folder / "board.toml"))
    tables = {name: read_toml(folder / federation.file) for name, federation in asked.federations.items()}
    return Board(folder, asked, tables)


def read_rows(folder: Path) -> pd.DataFrame:
    """The rows of all defences that were judged, as of `measure`; without any rows where there are none.

    Raises:
        InputError: a file is not a table of such rows.
    """
    tables = []
    for path in sorted((folder / "rows").glob("*.csv")):
        table = pd.read_csv(path)
        missing = sorted({"defence", "federation", "seed", *UTILITY, *RISK} - {*table.columns})
        require(not missing, f"{path}: is not a row of the board: it lacks the columns {quote(missing)}")
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def read_defence(path: Path, board: Board, *, allow_code: bool = True) -> Defence:
    """A defence's file, whose changes all federations of the board allow.

    Args:
        path: of the file.
        board: on which it is measured.
        allow_code: whether its changes may name code (``module:Name``), which is then imported.

    Raises:
        InputError: it does not.
    """
    table = read_toml(path)
    if not allow_code:
        require_data([table], path)
    defence = parse(Defence, table, str(path))
    unknown = sorted(defence.federations.keys() - board.tables.keys())
    require(not unknown, f"{path}: the board has no federation '{(*unknown, '')[0]}'; it has {', '.join(board.tables)}")
    for federation in board.tables:
        board.config(federation, defence)
    return defence


def measure(
    board: Board,
    defence: Defence,
    place: Workplace[SweepWatch],
    *,
    judge: bool = False,
) -> pd.DataFrame:
    """Run and audit a defence on every federation and seed; what is finished in ``place`` is not done again.

    Args:
        board: the federations.
        defence: what is measured.
        place: the directory of the runs, and what does them.
        judge: on the seeds of `Defence.seeds` in place of the development seeds.

    Returns:
        A row for each federation and seed: ``accuracy``, of the ``minority`` (the group with fewest clients) and of the
        ``worst_client``; for each view ``VIEW``, with ``.low`` and ``.high``, the AUC of the group that its strongest
        attack exposes most; ``canaries``, the share found at 1 % false positives; ``epsilon`` stated in another
        client's view, and ``epsilon_low``, the audit's lower bound; ``seconds`` of training; ``megabytes`` of the
        models that one client receives and returns over all rounds in which it takes part, each of float32.

    Raises:
        InputError: a federation is not the board's, or cannot be run with this defence, or ``place`` cannot be written;
            nothing is written then.
        ShoalError: a run failed; what is done is kept.
    """
    data_dir = place.data_dir
    board.require_same(data_dir)
    seeds = defence.seeds(board.asked.judging_seeds) if judge else tuple(board.asked.development_seeds)
    asked = [
        SweepPoint({"federation": name}, seed, replace(board.config(name, defence), seed=seed))
        for name in board.tables
        for seed in seeds
    ]
    planned = planned_runs(asked, "board", data_dir)
    runs = place.out / "runs"
    make_directory(runs)
    finish_runs(planned, replace(place, out=runs)).require_all()
    about = [{"defence": defence.name, **job.run.settings, "seed": job.run.seed} for job in planned]
    figures = [_row(job, runs / job.digest, board, data_dir) for job in planned]
    return pd.DataFrame([one | row for one, row in zip(about, figures, strict=True)])


def _row(job: PlannedRun, run: Path, board: Board, data_dir: Path | None) -> dict[str, Any]:
    """The figures of a run, which are kept beside it."""
    kept = run / "board.json"
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    summary, clients = read_run(run), read_table(run / "clients.csv", CLIENT_COLUMNS)
    minority = clients["group"].value_counts(sort=False).idxmin()
    row: dict[str, Any] = {
        "accuracy": summary["accuracy.overall"],
        "minority": summary[f"accuracy.{minority}"],
        "worst_client": float(clients["accuracy"].min()),
    }
    groups = clients["group"].unique()
    if any(summary.get(f"members.{group}", 0) for group in groups):
        audited = audit_run(run, references=board.asked.references, data_dir=data_dir, allow_code=True).audit.flat()
    else:
        # Nobody's records were trained on, so all views are at chance.
        audited = {f"views.{view}.{groups[0]}.auc{end}": 0.5 for view in VIEWS for end in ENDS}
    for view in VIEWS:
        exposures = [key for group in groups if (key := f"views.{view}.{group}.auc") in audited]
        most = max(exposures, key=lambda key: audited[key], default="")
        row |= {f"{view}{end}": audited.get(f"{most}{end}") for end in ENDS}
    algorithm = job.config.algorithm
    rounds = 0 if algorithm.name in SILENT else algorithm.rounds
    parameters = resolve(job.config, dataset_of(job.config, data_dir)).simulation.setup.model.parameters
    row |= {
        "canaries": summary.get("canaries.found"),
        "epsilon": summary.get("epsilon.client", summary.get("epsilon")),
        "epsilon_low": audited.get("empirical_epsilon"),
        "seconds": summary["seconds.train"],
        "megabytes": 2 * 4e-6 * parameters * rounds * algorithm.participation,
    }
    write_text(kept, json.dumps(row, indent=2) + "\n")
    return row


def shown(given: argparse.Namespace) -> str:
    """The table with a defence that is measured first, as the command line asks for it."""
    board = read_board(given.board)
    rows, path = read_rows(given.board), None
    if given.defence is not None:
        defence = read_defence(given.defence, board, allow_code=given.allow_code)
        with SweepDisplay(Console(stderr=True, quiet=given.quiet)) as display:
            place = Workplace(given.out, Workers(given.jobs, given.cluster), given.data_dir, display)
            own = measure(board, defence, place, judge=given.judge)
        path = given.out / f"{given.defence.stem}.csv"
        write_text(path, own.to_csv(index=False))
        rows = pd.concat([rows[rows["defence"] != defence.name], own], ignore_index=True) if len(rows) else own
    require(len(rows) > 0, f"{given.board / 'rows'}: has no rows yet; name a defence's file to measure one")
    tables = {name: standings(rows, name) for name in board.tables}
    if given.json:
        finite = {name: table.replace([np.inf, -np.inf], np.nan).astype(object) for name, table in tables.items()}
        document = {name: table.where(table.notna(), None).to_dict("records") for name, table in finite.items()}
        return json.dumps({"standings": document}, indent=2)
    return markdown(tables) + ("" if path is None else f"\nRows: {path}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("defence", type=Path, nargs="?", help="its TOML file; left out: the table as it stands")
    parser.add_argument("--board", type=Path, default=Path(__file__).parent, help="the board's folder")
    parser.add_argument("--judge", action="store_true", help="on the seeds that follow from the file")
    parser.add_argument("--out", type=Path, default=Path("runs/board"), help="of the runs and the rows, NAME.csv")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each a process")
    parser.add_argument("--cluster", metavar="ADDRESS", help="of a Ray cluster that does the runs")
    parser.add_argument("--data-dir", type=Path, help="where to look for data first")
    parser.add_argument("--allow-code", action="store_true", help="import code that the defence names (MODULE:NAME)")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    try:
        print(shown(parser.parse_args(arguments)))
    except ShoalError as error:
        print(f"board: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
