"""A run on several machines from its first round to its files, in a directory as `shoal run` makes."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
from safetensors.torch import save as serialize

from shoal.config.build import load_data, resolve
from shoal.config.schema import Config, read_config
from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import write_bytes, write_text
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data import ClientDataset, Federation
from shoal.deployment.server.events import Events
from shoal.deployment.server.exchange import Exchange
from shoal.deployment.server.remote_feedback import RemoteCoordinator, RemoteHistograms
from shoal.deployment.server.roster import Roster
from shoal.deployment.server.round_rows import client_frame, round_rows, summary_of
from shoal.deployment.server.run_settings import RunSettings
from shoal.deployment.server.server_rounds import Progress, Server
from shoal.deployment.supported import at_server, choice_of
from shoal.engine import Engine, Training
from shoal.reports.deployment_page import deployment_page
from shoal.runs.checkpoint import load_checkpoint, save_checkpoint
from shoal.runs.directory import is_begun, is_finished, logged, opened
from shoal.runs.hashes import differences
from shoal.simulation.simulation import Simulation, SimulationState

LOG = logging.getLogger("shoal")

_TIMED = ("train", "red_team", "total")
"""What a server can time: clients choose elsewhere, and nothing is attacked in the end."""


def serve(exchange: Exchange, settings: RunSettings, watch: Callable[[Progress], object] = lambda _: None) -> None:
    """Run what ``settings`` names with the nodes of ``exchange``, from its last round if it has begun.

    Raises:
        InputError: a configuration that cannot be run on several machines, another run's directory, or too few clients.
    """
    config = read_config(settings.config)
    choice = choice_of(config.algorithm.value)
    _require_supported(config)
    resolved = resolve(config, load_data(config.data, settings.data_dir))
    decided, simulation = resolved.config, resolved.simulation()
    classes = resolved.data.class_names if isinstance(resolved.data, ClientDataset) else ()
    # Paths are the server's own.
    sent = replace(decided, data=replace(decided.data, path=None)) if decided.data.partition else decided
    out = settings.out
    if out.exists() and is_begun(out) and is_finished(out):
        LOG.info("%s is finished", out)
        return
    engine = decided.engine.engine(simulation.setup.model)
    same, log = (lambda: _same(settings, decided)), out / "run.log"
    with engine, opened(out, decided.toml(), same, resume=out.exists()) as checkpoints, logged(log):
        events, roster = Events.open(out / "events.csv"), Roster.load(out / "nodes.json")
        server = Server(exchange, settings, sent.toml(), choice, roster, events, classes, resolved.standardizer, watch)
        base = engine.prepare(simulation.federation)
        progress = load_checkpoint(checkpoints)
        done = 0 if progress is None else progress.state.round
        LOG.info("begin after round %d: %s", done, decided.algorithm.name)
        while progress is None or progress.state.round < decided.algorithm.rounds:
            began = time.perf_counter()
            progress = _one_round(server, decided, simulation, base, engine, progress)
            progress.seconds["total"] += time.perf_counter() - began
            roster.save(out / "nodes.json")
            save_checkpoint(checkpoints, progress)
            write_text(out / "rounds.csv", pd.DataFrame(list(progress.rows)).to_csv(index=False))
        _finish(server, decided, simulation, base, engine, progress)


def _one_round(
    server: Server,
    config: Config,
    simulation: Simulation,
    base: Federation,
    engine: Engine,
    progress: SimulationState | None,
) -> SimulationState:
    """The run after one round more."""
    number = 1 if progress is None else progress.state.round + 1
    server.gather(number)
    training = _training(server, simulation, base, engine)
    if progress is None:
        progress = SimulationState(training.start())
    state, seconds = training.with_newcomers(progress.state), dict(progress.seconds)
    began = time.perf_counter()
    state, plan = server.round(training, state)
    trained = time.perf_counter()
    training = _training(server, simulation, base, engine)
    state, due = training.with_risks(state)
    seconds["train"] += trained - began
    seconds["red_team"] += time.perf_counter() - trained if due else 0.0
    last = state.round == config.algorithm.rounds
    rows = round_rows(training, state, plan, evaluated=last or state.round % config.evaluation.every == 0)
    clients = [int(row["clients"]) for row in rows]
    risks = ", ".join(f"{risk:.3f}" for risk in state.risks.tolist())
    LOG.info("round %d: clients by cluster %s; risks %s", state.round, clients, risks if due else "not estimated")
    return replace(progress, state=state, rows=progress.rows + rows, seconds=seconds)


def _training(server: Server, simulation: Simulation, base: Federation, engine: Engine) -> Training:
    """The training of the server with the clients that it knows now."""
    team, law = simulation.red_team, simulation.coordinator
    estimator = RemoteHistograms(server, team) if team.estimator == "histogram" else team
    return Training(
        federation=server.roster.federation(base),
        algorithm=at_server(simulation.algorithm),
        local=simulation.setup.local,
        engine=engine,
        stream=Stream(simulation.seed),
        participation=simulation.participation,
        risk_estimator=estimator,
        update_filter=simulation.setup.update_filter,
        defenses=simulation.setup.defenses if law is None else (*simulation.setup.defenses, law),
        coordinator=None if law is None else RemoteCoordinator(server, law),
    )


def _finish(
    server: Server, config: Config, simulation: Simulation, base: Federation, engine: Engine, now: SimulationState
) -> None:
    """Write the run's files; the summary last, since it marks the run as finished."""
    out, state, model = server.settings.out, now.state, simulation.setup.model
    training = _training(server, simulation, base, engine)
    write_text(out / "clients.csv", client_frame(server.roster, state).to_csv(index=False))
    named = {f"{k}.{name}": each for k, row in enumerate(state.models) for name, each in model.state_dict(row).items()}
    write_bytes(out / "models.safetensors", serialize({name: each.contiguous() for name, each in named.items()}))
    events = pd.read_csv(out / "events.csv", dtype={"client": str, "node": str, "reason": str})
    title = f"{config.algorithm.name} on {config.data.source}, {len(server.roster.members)} machines"
    page = deployment_page(
        pd.DataFrame(list(now.rows)), client_frame(server.roster, state), events, config.toml(), title
    )
    write_text(out / "report.html", page)
    measured = summary_of(training, state, now.rows, dict(server.events.counts))
    about = {"algorithm": config.algorithm.name, "dataset": config.data.source, "seed": config.seed}
    seconds = {f"seconds.{name}": value for name, value in now.seconds.items() if name in _TIMED}
    summary = about | {"rounds": state.round, "clients": len(server.roster.members)} | measured | seconds
    write_text(out / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    LOG.info("done after %d rounds", state.round)


def _same(settings: RunSettings, config: Config) -> None:
    """Raise `InputError` where the run's directory holds another run."""
    out = settings.out
    if not is_begun(out):
        return
    for key, (old, new) in differences(read_toml(out / "config.toml"), config.table()).items():
        require(False, f"{out}: holds a run with {key} = {old!r}, but the config says {new!r}; choose another 'out'")


def _require_supported(config: Config) -> None:
    """Raise `InputError` where the configuration asks for what a server without its clients' data cannot do."""
    team = config.red_team
    require(
        team.every == 0 or team.estimator in ("shadow", "histogram"),
        f"'red_team.estimator' must be 'shadow' or 'histogram' on several machines; got '{team.estimator}'",
    )
    if config.coordinator is not None:
        require(
            not config.coordinator.law.min_clients,
            "'coordinator.min_clients' sets prices, which choices on several machines do not know; leave it out",
        )
        require(
            config.coordinator.pooling is None,
            "'coordinator.pooling' is steered in simulations alone; leave it out on several machines",
        )
    require(
        config.coordinator is None or config.coordinator.law.release_on == "estimate",
        "'coordinator.release_on' must be 'estimate' on several machines, where a client answers one bit",
    )
    for name in ("property_attack", "canaries", "record"):
        given = getattr(config, name)
        require(given is None, f"[{name}] works in simulations alone; leave it out on several machines")
