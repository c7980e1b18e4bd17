"""A run is a directory: what was asked, how far it got, and what came out. It can be killed and resumed.

config.toml          the complete configuration; running it again gives the same results
references/          where they are trained, the scores of each reference federation
hashes.json          hashes of the examples and, of a finished run, of its files: `shoal.runs.hashes`
updates/             where they are recorded, each recorded round's updates as the server received them
checkpoint/          the last two rounds' states; of a finished run the last, from which it can be prolonged; and files
                     with the clients' own models
rounds.csv           a row a round and cluster
clients.csv          a row a client
summary.json         every figure, under flat keys; written last, so it marks a finished run
roc.csv              the attack's ROC curves by group
property.csv         a row per aggregated update with a property attack; the table of another round attack by its name
canaries.csv         a row a canary, where there are some
samples.safetensors  a few test images of each group, for the report
models.safetensors   the K final models, each tensor under "k.name"; written before they are measured
report.html          all of it, to look at; a step of its own after the run: `shoal.runs.result`
run.log              what happened when
"""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from shoal.config.build import engine_of, load_data, resolve
from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, path_of, require, require_instance
from shoal.data import SourceData
from shoal.data.content import fingerprint
from shoal.replay.reference_store import AuditWatch
from shoal.reports.run.description import RunDescription
from shoal.runs.checkpoint import load_checkpoint, stored_observations
from shoal.runs.directory import finish, is_begun, is_finished, logged, opened, taken, train
from shoal.runs.hashes import differences, require_same_examples, require_unchanged, write_hashes
from shoal.runs.measuring import measured
from shoal.runs.result import result_of
from shoal.runs.updates import require_room
from shoal.simulation.round_metrics import not_evaluated
from shoal.simulation.simulation import (
    SimulationState,
    Watch,
    initial_state,
    move_to_engine,
)

LOG = logging.getLogger("shoal")

OUTCOME = (
    "clients.csv", "rounds.csv", "roc.csv", "canaries.csv", "models.safetensors", "samples.safetensors",
    "report.html",
)  # fmt: skip
"""What a run writes at its end, beside its summary."""


def run(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    data_dir: Path | None = None,
    dataset: SourceData | None = None,
    watch: Watch | None = None,
    watch_references: AuditWatch | None = None,
) -> Path:
    """Run ``config`` in the directory ``out``, from its last checkpoint if ``resume``; returns ``out``.

    Nothing is written before the configuration has been built; an existing directory is only touched to resume
    the same configuration in it. The page is not written: that is `shoal.runs.result.report_of`.

    Args:
        config: what to run.
        out: its directory.
        resume: whether ``out`` may exist, with the same run in it, or one of fewer rounds, which is prolonged.
        data_dir: where to look for data first.
        dataset: the examples of [data], where they are loaded already.
        watch: called before the first round and after each.
        watch_references: called before the first and after each reference federation.

    Raises:
        InputError: a configuration that cannot be run, or a directory that exists, cannot be written, holds
            another run or one on other examples, or in which one is going on; or training that diverged, with the
            last good checkpoint left in place.
        MeasurementError: the final models, which are in the directory, cannot be measured.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import shoal
        >>> from shoal.config.schema import parse_config
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 20}
        >>> table = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 2}}
        >>> table["red_team"] = {"every": 0, "attack": "gap"}
        >>> with TemporaryDirectory() as folder:
        ...     out = shoal.run(parse_config(table, "the example"), Path(folder, "run"))
        ...     sorted(path.name for path in out.glob("*.csv"))
        ...
        ['clients.csv', 'roc.csv', 'rounds.csv']
    """
    require_instance("config", config, Config, "such as read_config('run.toml') gives")
    out = path_of("out", out)
    given = dataset is None or isinstance(dataset, SourceData)
    require(given, f"'dataset' must be one that load_dataset gives; got {type(dataset).__name__}")
    if not resume and out.exists():
        raise taken(out)
    found = resolve(config, load_data(config.data, data_dir) if dataset is None else dataset)
    decided, simulation, description = found.config, found.simulation(), tuple(found.description())
    warnings = tuple(found.warnings)
    del found  # and with it the data set, which the federation has copied
    if decided.record is not None:
        require_room(simulation, decided.record.max_megabytes, "record.max_megabytes")
    examples = fingerprint(simulation.federation)
    if resume and out.exists() and _same_run(out, decided, examples) == simulation.rounds and is_finished(out):
        return out
    engine = engine_of(decided, simulation.setup.model)
    same = partial(_same_run, out, decided, examples)
    with engine, opened(out, decided.toml(), same, resume=resume, examples=examples) as checkpoints:
        rounds_before = read_config(out / "config.toml").algorithm.rounds
        if is_finished(out) and rounds_before == simulation.rounds:
            return out
        with logged(out / "run.log"):
            simulation = move_to_engine(simulation, engine)
            progress = load_checkpoint(checkpoints)
            progress = _prolonged(out, decided, examples, progress, rounds_before)
            if progress is None:
                progress = initial_state(simulation, engine)
                LOG.info("begin: %s on %s, seed %d", decided.algorithm.name, decided.data.source, decided.seed)
                for line in description:
                    LOG.info("%s", line)
                for line in warnings:
                    LOG.warning("%s", line)
            else:
                LOG.info("resume after round %d", progress.state.round)
            if watch is not None:
                watch(simulation, progress, None)
            progress = train(simulation, engine, progress, checkpoints, every=decided.checkpoint.every, watch=watch)
            seen = partial(stored_observations, checkpoints)
            outcome = measured(simulation, engine, progress, seen, out=out, watch=watch_references)
            described = replace(RunDescription.of(decided), examples=examples)
            finish(out, result_of(outcome, simulation, engine, described))
    return out


def _same_run(out: Path, config: Config, examples: str) -> int:
    """The rounds that the run in ``out`` was asked for last, or else those of ``config``.

    Raises:
        InputError: it holds no run of ``config`` on ``examples``, or its files were changed since it was finished.
            What only decides how fast it goes may differ, the data may have moved, and the run may be one of fewer
            rounds: nothing in a round depends on how many follow.
    """
    if not is_begun(out):
        return config.algorithm.rounds
    before = read_config(out / "config.toml")
    rounds, wanted = before.algorithm.rounds, config.algorithm.rounds
    for key, (old, new) in differences(before, config).items():
        if key == "data.path" or (key == "algorithm.rounds" and rounds < wanted):
            continue
        require(
            key != "algorithm.rounds",
            f"{out}: holds a run of {rounds} rounds, which --resume can prolong but not shorten: 'algorithm.rounds' "
            f"must be at least {rounds}; got {wanted}",
        )
        raise InputError(f"{out}: holds a run with {key} = {old!r}, but the config says {new!r}; choose another --out")
    require_same_examples(out, examples)
    if is_finished(out):
        require_unchanged(out)
    return rounds


def _prolonged(
    out: Path, config: Config, examples: str, progress: SimulationState | None, before: int
) -> SimulationState | None:
    """Make a run of ``before`` rounds one of ``config``'s; returns its progress as if it had been that from the start.

    Raises:
        InputError: the run is finished and its last checkpoint is gone.
    """
    if before == config.algorithm.rounds:
        return progress
    if is_finished(out):
        require(
            progress is not None and progress.state.round == before,
            f"{out}: cannot be prolonged, since the checkpoint of its last round is gone; choose another --out",
        )
        # The summary first: without it the run is one that was killed before its end.
        attack = () if config.property_attack is None else (f"{config.property_attack.attack.name}.csv",)
        for name in ("summary.json", *OUTCOME, *attack):
            (out / name).unlink(missing_ok=True)
    write_text(out / "config.toml", config.toml())
    write_hashes(out, examples)
    LOG.info("prolonged from %d to %d rounds", before, config.algorithm.rounds)
    if progress is None:
        return None
    # The last round is always evaluated, but this one is the last no longer.
    evaluated = before % config.evaluation.every == 0
    rows = tuple(row if evaluated or row["round"] != before else not_evaluated(row) for row in progress.rows)
    return replace(progress, rows=rows)
