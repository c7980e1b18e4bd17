"""The ServerApp: a run on several machines, from the first round to the files in the run's directory."""

import contextlib
import json
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path

import pandas as pd
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from shoal.config.build import load_data, resolve
from shoal.config.kinds import own_code, title_of
from shoal.config.schema import Config, read_config
from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import write_bytes, write_text
from shoal.core.errors import InputError, ShoalError, quote, require, suggest
from shoal.core.formats import DASH, csv_text, decimal
from shoal.core.randomness import Stream
from shoal.data import ClientDataset, Federation
from shoal.engine import Engine, RoundPlan, State, Training
from shoal.models import FeatureMap
from shoal.reports.page import Section, render
from shoal.reports.table import ReportTable, heads, row
from shoal.runs.checkpoint import load_checkpoint, save_checkpoint
from shoal.runs.directory import is_begun, is_finished, log_to_file, open_run_dir
from shoal.runs.files import differences
from shoal.runs.result import FEATURES, named_models, write_models
from shoal.simulation.play import SimulationState
from shoal.simulation.round_metrics import RoundRow, directive_columns, group_means, metric_values, risk_columns
from shoal.simulation.simulation import Simulation, apply_feature_map
from shoal_flower.flower_config import RunSettings
from shoal_flower.messages import parts_of
from shoal_flower.secure_sums.contributions import check_summable
from shoal_flower.server.attendance import Attendance, SentFile
from shoal_flower.server.exchange import Exchange
from shoal_flower.server.roster import Events, LedgerStamps, Roster
from shoal_flower.server.secure_rounds import SecureHistograms, SecureRounds
from shoal_flower.server.server_rounds import Progress, RemoteCoordinator, RemoteHistograms, Server

LOG = logging.getLogger("shoal")
app = ServerApp()

_TIMED = ("train", "red_team", "total")
"""The stages that a server can time; clients choose models themselves, and the server runs no final attacks."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation with the nodes of ``grid``."""
    rounds = logging.StreamHandler(sys.stdout)
    rounds.setFormatter(logging.Formatter("%(message)s"))
    LOG.addHandler(rounds)
    try:
        _serve(grid, RunSettings.read(context.run_config))
    except (ShoalError, OSError) as error:
        # Flower logs the traceback of an error, but the message is enough.
        sys.tracebacklimit = 0
        if isinstance(error, ShoalError):
            raise
        raise ShoalError(_reason(error)) from None
    finally:
        LOG.removeHandler(rounds)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'a file'}: {error.strerror}; fix this and resume by the same 'flwr run' command"
    return str(error)


def _serve(grid: Grid, settings: RunSettings) -> None:
    """Run ``settings``, and write the reason of a failure into the run's directory."""
    is_open = False

    def show(progress: object) -> None:
        nonlocal is_open
        is_open = True
        write_text(settings.out / "progress.json", json.dumps(progress) + "\n")

    try:
        serve(Exchange(grid), settings, lambda progress: show(vars(progress)))
    except Exception as error:
        # Before the first progress, the directory may belong to another run. On a full disk, this fails too.
        log = log_to_file(settings.out / "run.log") if is_open else contextlib.nullcontext()
        with contextlib.suppress(OSError), log:
            LOG.error("%s", _reason(error))
            if is_open:
                show({"error": _reason(error)})
        raise


def serve(exchange: Exchange, settings: RunSettings, watch: Callable[[Progress], object] = lambda _: None) -> None:
    """Run ``settings`` with the nodes of ``exchange``, or resume after the last round.

    Raises:
        InputError: the configuration cannot run on several machines, the directory has another run, or too few clients
            connect.
    """
    config = read_config(settings.config)
    choice = parts_of(config.algorithm.value).choice
    _require_supported(config)
    resolved = resolve(config, load_data(config.data, settings.data_dir))
    require(
        resolved.simulation.federation.classes is not None,
        f"{settings.config}: regression is allowed in simulations only; use a classification task",
    )
    decided, simulation = resolved.config, apply_feature_map(resolved.simulation)
    features = SentFile.of_features(simulation.features) if isinstance(simulation.features, FeatureMap) else None
    classes = resolved.data.class_names if isinstance(resolved.data, ClientDataset) else ()
    # Paths are the server's own.
    sent = replace(decided, data=replace(decided.data, path=None)) if decided.data.partition else decided
    out = settings.out
    if out.exists() and is_begun(out) and is_finished(out):
        LOG.info("%s is finished", out)
        return
    known = [client.name for client in Roster.load(out / "nodes.json").clients]
    for name in settings.leave:
        have = suggest(name, known) if known else "clients join in the first round"
        require(name in known, f"run config: 'leave' must name clients of this run (got '{name}'); {have}")
    if code := own_code(sent.table()):
        LOG.warning("a node refuses this run unless its 'allow-code' names %s", quote(sorted(code)))
    engine = decided.engine.engine(simulation.setup.model)
    run_dir = open_run_dir(out, decided.toml(), lambda: _require_same(out, decided), resume=out.exists())
    with engine, run_dir as checkpoints, log_to_file(out / "run.log"):
        watch(Progress(0))
        roster, events = Roster.load(out / "nodes.json"), Events.open(out / "events.csv")
        attendance = Attendance(exchange, settings, roster, events, LedgerStamps(settings.stamps))
        shared = classes, resolved.standardizer, features, watch, SentFile.of_frozen(engine.model)
        server = Server(attendance, sent.toml(), choice, *shared)
        sums = None if decided.secure_aggregation is None else SecureRounds(server, decided)
        run = _Run(server, decided, simulation, engine.prepare(simulation.federation), engine, sums)
        progress = load_checkpoint(checkpoints, engine.model.frozen_hash)
        done = 0 if progress is None else progress.state.round
        for member in [member for member in roster.members if member.name in settings.leave]:
            attendance.leave(done + 1, member, "the run config's 'leave'")
        LOG.info("begin after round %d: %s", done, decided.algorithm.name)
        while progress is None or progress.state.round < decided.algorithm.rounds:
            began = time.perf_counter()
            progress = run.round(progress)
            progress.seconds["total"] += time.perf_counter() - began
            attendance.stamps.save()
            attendance.roster.save(out / "nodes.json")
            save_checkpoint(checkpoints, progress, frozen=engine.model.frozen_hash)
            write_text(out / "rounds.csv", pd.DataFrame(list(progress.rows)).to_csv(index=False))
        require(
            attendance.idle == 0,
            f"no update was merged in the last {attendance.idle} rounds (see events.csv); rerun the command to write "
            "the report of the earlier rounds",
        )
        run.finish(progress)


@dataclass(frozen=True, eq=False)
class _Run:
    """A run in progress; its ``federation`` contains only the server's shadow set and test set."""

    server: Server
    config: Config
    simulation: Simulation
    federation: Federation
    engine: Engine
    sums: SecureRounds | None = None

    def round(self, progress: SimulationState | None) -> SimulationState:
        """Run one more round and return the new state."""
        number = 1 if progress is None else progress.state.round + 1
        self.server.gather(number)
        for sent in (self.server.features, self.server.frozen):
            if sent is not None:
                sent.send(self.server.attendance, number)
        roster, training = self.server.attendance.roster, self._training(None)
        everybody = replace(training, federation=roster.federation(self.federation, roster.clients))
        if progress is None:
            progress = SimulationState(everybody.start())
        # Clients that left keep only their rows of the state.
        whole, present, seconds = everybody.with_newcomers(progress.state), roster.present, dict(progress.seconds)
        state = whole.take(present)
        began = time.perf_counter()
        state, plan = (self.sums or self.server).round(training, state)
        trained = time.perf_counter()
        training = self._training(state)
        # Risks need numbers of examples, which are unknown until a client has trained.
        state, due = training.with_risks(state) if training.federation.clients.sizes.any() else (state, False)
        seconds["train"] += trained - began
        seconds["red_team"] += time.perf_counter() - trained if due else 0.0
        evaluated = state.round == self.config.algorithm.rounds or state.round % self.config.evaluation.every == 0
        rows = round_rows(training, state, plan, evaluated=evaluated)
        clients = [int(row["clients"]) for row in rows]
        risks = ", ".join(f"{risk:.3f}" for risk in state.risks.tolist())
        LOG.info("round %d: clients by cluster %s; risks %s", state.round, clients, risks if due else "not estimated")
        return replace(progress, state=whole.put(present, state), rows=progress.rows + rows, seconds=seconds)

    def finish(self, progress: SimulationState) -> None:
        """Write the run's files, with summary.json last, because it marks the run as finished."""
        attendance, config, roster = self.server.attendance, self.config, self.server.attendance.roster
        out, members, state = attendance.settings.out, len(roster.members), progress.state.take(roster.present)
        clients = roster.frame(state.assignment.tolist())
        if self.sums is not None:  # Nobody knows a client's cluster and number of examples.
            clients = clients.drop(columns=["cluster", "examples"])
        write_text(out / "clients.csv", csv_text(clients))
        model = self.engine.model
        write_models(out, named_models(model, state), model.frozen_names)
        if self.server.features is not None:
            write_bytes(out / FEATURES, self.server.features.content())
        events = pd.read_csv(out / "events.csv", dtype={"client": str, "node": str, "reason": str})
        title = f"{title_of(config.algorithm.value)} on {config.data.source}, {members} machines"
        page = deployment_page(pd.DataFrame(list(progress.rows)), clients, events, config.toml(), title)
        write_text(out / "report.html", page)
        summary = {
            "algorithm": config.algorithm.name,
            "dataset": config.data.source,
            "seed": config.seed,
            "rounds": state.round,
            "clients": members,
            **summary_of(self._training(state), state, progress.rows, dict(attendance.events.counts)),
            **({} if self.sums is None else self.sums.epsilons()),
            **{f"seconds.{name}": value for name, value in progress.seconds.items() if name in _TIMED},
        }
        write_text(out / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
        LOG.info("done after %d rounds", state.round)

    def _training(self, state: State | None) -> Training:
        server, simulation = self.server, self.simulation
        team, law, defenses = simulation.red_team, simulation.coordinator, simulation.setup.defenses
        federation = server.attendance.roster.federation(self.federation)
        estimator = RemoteHistograms(server, team) if team.estimator == "histogram" else team
        if self.sums is not None:
            federation = self.sums.federation(federation, state)
            estimator = SecureHistograms(self.sums, team) if team.estimator == "histogram" else team
        return Training(
            federation=federation,
            algorithm=parts_of(simulation.algorithm).server,
            local=simulation.setup.local,
            engine=self.engine,
            stream=Stream(simulation.seed),
            participation=simulation.participation,
            risk_estimator=estimator,
            update_filter=simulation.setup.update_filter,
            defenses=defenses if law is None else (*defenses, law),
            coordinator=None if law is None else RemoteCoordinator(server, law),
        )


def _require_same(out: Path, config: Config) -> None:
    """Raise `InputError` if ``out`` holds another run."""
    if is_begun(out):
        for key, (old, new) in differences(read_toml(out / "config.toml"), config.table()).items():
            raise InputError(f"{out}: has a run with {key} = {old!r} (got {new!r}); choose another 'out'")


def _require_supported(config: Config) -> None:
    """Raise `InputError` if a server without its clients' data cannot run the configuration."""
    team, coordinator = config.red_team, config.coordinator
    require(
        team.every == 0 or team.estimator in ("shadow", "histogram"),
        f"'red_team.estimator' must be 'shadow' or 'histogram' on several machines (got '{team.estimator}')",
    )
    if coordinator is not None:
        require(
            not coordinator.law.min_clients,
            "'coordinator.min_clients' is allowed in simulations only; remove the key",
        )
        require(
            coordinator.pooling is None,
            "'coordinator.pooling' is allowed in simulations only; remove the key",
        )
        require(
            coordinator.law.release_on == "estimate",
            f"'coordinator.release_on' must be 'estimate' on several machines (got '{coordinator.law.release_on}')",
        )
        views = (config.privacy.view,) if isinstance(config.privacy.view, str) else config.privacy.view or ()
        require(
            {*views, config.evaluation.view} == {"outsider"},
            "'evaluation.view' and 'privacy.view' must be 'outsider' with a coordinator on several machines",
        )
    rule, secure = config.defenses.dp_sgd, config.secure_aggregation
    if secure is not None:
        check_summable(config)
    in_sum = rule is not None and rule.noise == "sum" and secure is None
    require(not in_sum, "'defenses.dp_sgd.noise' must be 'client' on several machines without [secure_aggregation]")
    own = [name for name in (config.model.features.maps if config.model.features else ()) if ":" in name]
    require(
        not own,
        f"'model.features.maps' must be 'scattering' or 'pca' on several machines (got {quote(own)})",
    )
    method = "continue" if config.forgetting is None else config.forgetting.value.name
    require(config.events is None, "[[events]] is allowed in simulations only; use 'leave' in the run config")
    require(
        method == "continue",
        f"'forgetting.method' must be 'continue' on several machines (got '{method}'); to retrain without a client, "
        "start a new run",
    )
    for name in ("property_attack", "canaries", "record", "release"):
        require(getattr(config, name) is None, f"[{name}] is allowed in simulations only; remove the section")


def round_rows(training: Training, state: State, plan: RoundPlan, *, evaluated: bool) -> tuple[RoundRow, ...]:
    """Return one row per cluster: its clients in this round, and its model's risk and test accuracy.

    Accuracy is measured on the server's test set: ``accuracy.<group>`` on one group, and ``accuracy`` on all examples.
    Without ``evaluated``, all accuracies are NaN.
    """
    federation, rows = training.federation, []
    present = torch.nonzero(state.trained == state.round)
    for k, model in enumerate(state.models):
        inside = present[:, 0][present[:, 1] == k] if len(plan.assignment) else present[:0, 0]
        values = metric_values(model, federation, training.engine) if evaluated else torch.empty(0)
        means = group_means(values, federation) if evaluated else [nan] * len(federation.groups)
        row: dict[str, float] = {
            "round": state.round,
            "cluster": k,
            "clients": int((plan.assignment == k).sum()),
            "examples": int(federation.clients.sizes[inside].sum()),
            **risk_columns(state, k),
            "accuracy": float(values.mean()) if len(values) else nan,
            **{f"accuracy.{name}": mean for name, mean in zip(federation.groups, means, strict=True)},
        }
        rows.append(row | directive_columns(state, k))
    return tuple(rows)


def summary_of(
    training: Training, state: State, rows: tuple[RoundRow, ...], counts: dict[str, int]
) -> dict[str, float]:
    """Return the entries of ``summary.json`` on clusters and events after the last round."""
    summary: dict[str, float] = {}
    last = {row["cluster"]: row for row in rows if row["round"] == state.round}
    for k in range(len(state.models)):
        summary[f"clusters.{k}.clients"] = int((state.assignment == k).sum())
        summary[f"clusters.{k}.risk"] = float(state.risks[k])
        for name in training.federation.groups:
            value = last.get(k, {}).get(f"accuracy.{name}", nan)
            if not isnan(value):  # JSON has no NaN.
                summary[f"clusters.{k}.accuracy.{name}"] = value
    return summary | {f"events.{kind}": count for kind, count in sorted(counts.items())}


_KNOWN = (
    "This run trained on several machines. The page shows what the server knows: the models' accuracy on its own test "
    "set, its estimates of risk, and each node's replies. The server sees no client's examples and no client's limit."
)


def deployment_page(rounds: pd.DataFrame, clients: pd.DataFrame, events: pd.DataFrame, config: str, title: str) -> str:
    """Return the page of a run, from the tables of ``rounds.csv``, ``clients.csv`` and ``events.csv``."""
    last = rounds[rounds["round"] == rounds["round"].max()]
    unmerged = events[events["kind"].isin(["rejected", "failed", "missed", "refused"])]
    leavers = events[events["kind"] == "left"].drop(columns=["kind", "node"])
    # With secure aggregation nobody knows the clients of a cluster.
    members = clients["cluster"].value_counts() if "cluster" in clients else last.set_index("cluster")["clients"]
    sizes = ", ".join(f"model {k} by {int(members.get(k, 0))}" for k in last["cluster"])
    verdict = (
        f"{int(rounds['round'].max())} rounds with {len(clients)} clients; trained last: {sizes}; "
        f"{len(unmerged)} replies were missing or not merged."
    )
    sections = (
        _section("models", "Models after the last round", last.drop(columns=["round"])),
        _section("clients", "Clients", clients.set_index("name").reset_index()),
        *([_section("leavers", "Clients that left for good", leavers)] if len(leavers) else []),
        _section("events", "Replies that were missing or not merged", unmerged),
        _section("rounds", "Rounds", rounds),
        Section("config", "Configuration", code=config),
    )
    return render("page.html.j2", title, [("verdict", verdict), ("", _KNOWN)], (), sections, style="run")


def _section(name: str, title: str, frame: pd.DataFrame) -> Section:
    whole = [pd.api.types.is_integer_dtype(frame[column]) for column in frame]
    rows = (row(*map(_text, values, whole)) for values in frame.itertuples(index=False))
    first, *further = map(str, frame)
    return Section(name, title, table=ReportTable(heads([first], further), tuple(rows)))


def _text(value: object, whole: bool) -> str:
    if whole or not isinstance(value, float):
        return DASH if value is None else str(value)
    return DASH if math.isnan(value) else decimal(value)
