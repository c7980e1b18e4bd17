"""The joint attack and what might beat it, on settings that were reported as protected.

    python experiments/attacks/joint.py OUT [--seeds 0 1] [--settings demo mlp]

Each setting is trained and attacked with complete lists: all members of a client and as many non-members. A run whose
file is in OUT/runs is not run again. Written: OUT/joint.csv, the AUC over the audit's pairs for each setting, seed,
view and attack. `filter`: the matched filter, which needs no list. `joint`: as audits ask it. `updates of another
client`: its null. The rest are variants: `posterior mean` in place of log-odds; `binary`: expectation propagation with
memberships of 0 or 1; `known count`: the number of members is known too; `midpoint`: gradients half way between start
and end of a round, where the attack takes others; `half of the members missing`, `three non-members per member`, `each
non-member three times`: other lists; `with the final model`: plus the loss of the released model, in standard
deviations.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from shoal.attacks import Candidates, ModelJoint, UpdateJoint
from shoal.attacks.span import joint
from shoal.attacks.span.layer_moves import Move, moves_of_models, moves_of_updates
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.config.toml_files import read_toml
from shoal.core.atomic_files import write_text
from shoal.data import Federation
from shoal.engine import Engine
from shoal.metrics import roc_auc
from shoal.replay.reference_federations import AttackedRun
from shoal.replay.span_scores import on_list, span_scores
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import apply_feature_map

ROOT = Path(__file__).resolve().parents[1]
BAR = read_toml(ROOT / "protection" / "bar.toml")["grid"]["setting"]
DEMO, BASE = read_toml(ROOT / "demo" / "protected.toml"), read_toml(ROOT / "control" / "bar-base.toml")
PLAIN = {"red_team.every": 0, "red_team.estimator": "shadow", "evaluation.reference_federations": 0}
MLP = {
    "model": {"name": "mlp", "hidden": 64}, "algorithm": {"name": "ifca", "clusters": 2, "rounds": 15},
    "local": {"epochs": 5, "batch_size": "all", "learning_rate": 0.5},
    "defenses": {"dp_sgd": {"noise_multiplier": 1.0}},
}  # fmt: skip
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"demo, noise {noise}": (DEMO, {"defenses.dp_sgd.noise_multiplier": float(noise)}) for noise in (5, 10, 15, 24)},
    "mlp, noise 1 at clients": ({**DEMO, **MLP}, {"data.clients": 20, "data.examples_per_client": 25}),
    **{name: (BASE, {**BAR[name], **PLAIN}) for name in ("promised", "protected", "clusters without labels")},
    "8 features, no noise": (
        BASE,
        {
            **PLAIN, "model": {"name": "logistic", "features": {"maps": ["pca"], "dimension": 8}},
            "local.learning_rate": 2.0,
        },
    ),
}  # fmt: skip


def changed(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration with some keys set."""
    whole = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    for key, value in changes.items():
        *path, last = key.split(".")
        inside = whole
        for name in path:
            inside[name] = dict(inside.get(name, {}))
            inside = inside[name]
        inside[last] = value
    return whole


@contextmanager
def attacked_run(setting: str, seed: int) -> Iterator[tuple[AttackedRun, Engine]]:
    """A finished run of a setting and its engine."""
    table, changes = SETTINGS[setting]
    config = parse_config(changed(table, {**changes, "seed": seed, "evaluation.every": 1000}), setting)
    _, simulation = build(config)
    simulation = apply_feature_map(simulation)
    with config.engine.engine(simulation.setup.model) as engine:
        simulation = move_to_engine(simulation, engine)
        *_, (now, _) = run_rounds(simulation, engine, initial_state(simulation, engine))
        yield AttackedRun.from_run(simulation, now.state, now.rows, engine), engine


def binary(part: joint._Unknown) -> torch.Tensor:
    """The log-odds of memberships of 0 or 1: damped expectation propagation."""
    prior, eye = part.prior, torch.eye(len(part.rows), dtype=torch.float64)
    precision = torch.full_like(part.moved, 1 / (prior * (1 - prior)))
    location, odds = precision * prior, torch.zeros_like(part.moved)
    for _ in range(12):
        inverse = torch.linalg.inv(part.gram + precision * eye)
        mean, spread = inverse @ (part.moved + location), inverse.diagonal()
        rest = (1 / spread - precision).clamp(min=1e-12)
        there = (mean / spread - location) / rest
        odds = rest * (there - 0.5)
        chance = torch.sigmoid(odds + math.log(prior / (1 - prior))).clamp(1e-6, 1 - 1e-6)
        width = chance * (1 - chance)
        precision = precision + 0.7 * ((1 / width - rest).clamp(min=1e-3) - precision)
        location = location + 0.7 * (chance / width - rest * there - location)
    return odds


def posterior_mean(part: joint._Unknown) -> torch.Tensor:
    """The posterior mean of each membership."""
    precision = 1 / (part.prior * (1 - part.prior))
    regularised = part.gram + precision * torch.eye(len(part.rows), dtype=torch.float64)
    return torch.linalg.solve(regularised, part.moved + precision * part.prior)


def known_count(part: joint._Unknown) -> torch.Tensor:
    """The log-odds if the number of members on the list is known, up to a tenth of its square root."""
    one, certainty = torch.ones_like(part.moved), 100.0 / len(part.moved)
    gram = part.gram + certainty * one[:, None] * one
    return replace(part, gram=gram, moved=part.moved + certainty * part.prior * len(one) * one).log_odds()


SOLVERS: dict[str, Callable[[joint._Unknown], torch.Tensor]] = {
    "joint": joint._Unknown.log_odds, "posterior mean": posterior_mean, "binary": binary, "known count": known_count,
}  # fmt: skip


def lists(whole: Candidates, pairs: int) -> dict[str, tuple[Candidates, np.ndarray]]:
    """Other lists, and the places of their members and non-members among the audit's pairs."""
    assert whole.client is not None
    draw, places, asked = np.random.default_rng(0), np.arange(len(whole.x)), np.arange(2 * pairs)
    owner = whole.client.numpy()
    rest = len(places) - 2 * pairs
    member = (places < pairs) | ((places >= 2 * pairs) & (places < 2 * pairs + int(rest > 0) * _unpaired(whole, pairs)))
    kept = ~member | (draw.random(len(places)) < 0.5)
    non_members = places[~member]

    def of(rows: np.ndarray, client: np.ndarray | None = None) -> tuple[Candidates, np.ndarray]:
        index = torch.from_numpy(rows)
        parts = {name: getattr(whole, name)[index] for name in ("x", "y", "client", "examples")}
        if client is not None:
            parts["client"] = torch.from_numpy(client)
        first = np.array([np.flatnonzero(rows == place)[0] if (rows == place).any() else -1 for place in asked])
        return Candidates(**parts), first

    further = draw.choice(non_members, 2 * int(member.sum()))
    clients = np.r_[owner, draw.permutation(np.repeat(owner[member], 2))]
    return {
        "half of the members missing": of(places[kept]),
        "three non-members per member": of(np.r_[places, further], clients),
        "each non-member three times": of(np.r_[places, non_members, non_members]),
    }


def _unpaired(whole: Candidates, pairs: int) -> int:
    """The number of members that are in no pair."""
    assert whole.client is not None
    assert whole.examples is not None
    _, first = np.unique(whole.client.numpy(), return_index=True)
    return int(whole.examples.numpy()[first].sum()) - pairs


def next_of_group(federation: Federation) -> dict[int, int]:
    """Another client of the same group for each client, by id."""
    following = dict[int, int]()
    for group in federation.group.unique():
        ids = federation.ids[federation.group == group].tolist()
        following |= dict(zip(ids, [*ids[1:], ids[0]], strict=True))
    return following


def rows_of(setting: str, seed: int) -> list[dict[str, Any]]:
    """The rows of one run."""
    with attacked_run(setting, seed) as (attacked, engine):
        return rows_of_run(setting, seed, attacked, engine)


def rows_of_run(setting: str, seed: int, attacked: AttackedRun, engine: Engine) -> list[dict[str, Any]]:
    """The rows of an attacked run."""
    rounds, pairs = attacked.simulation.rounds, len(attacked.records)
    seen, knowledge = attacked.first_rounds(engine, rounds)
    assert seen is not None
    asked, rows = attacked._asked, list[dict[str, Any]]()
    assert asked is not None
    member = np.arange(2 * pairs) < pairs
    loss = attacked.scores(engine).score.numpy()

    def add(view: str, attack: str, score: np.ndarray, places: np.ndarray | None = None) -> None:
        places = np.arange(2 * pairs) if places is None else places
        scored, of_member = score[places], member & (places >= 0)
        use = (places >= 0) & ~np.isnan(scored)
        auc = roc_auc(scored[use], of_member[use])
        rows.append({"setting": setting, "seed": seed, "view": view, "attack": attack, "auc": auc, "pairs": pairs})
        print(f"{setting}, seed {seed}, {view}, {attack}: {auc:.3f}", flush=True)

    filtered = span_scores(seen, asked, engine, knowledge).scores
    clients = torch.cat([updates.clients for updates in seen.updates]).unique()

    def moves_of(view: str) -> list[Move]:
        if view == "server":
            return moves_of_updates(seen.updates, clients, continued=knowledge.continued)
        moves = moves_of_models(seen.moves(), asked, engine, knowledge, seen.first)
        merged = seen.weights()
        whole = [(move, *merged[move.number - seen.first]) for move in moves]
        return [replace(move, clients=c[w[move.row] > 0], weights=w[move.row, w[move.row] > 0]) for move, c, w in whole]

    def solved(moves: Sequence[Move], on_list: Candidates, solver: Callable[..., torch.Tensor]) -> np.ndarray:
        score = np.full(len(on_list.x), np.nan)
        for part in joint._Regression(on_list, engine, knowledge, None).solve([m for m in moves if len(m.clients)]):
            score[part.rows.numpy()] = solver(part).numpy()
        return score

    for view, attack, span in (("client", ModelJoint.name, "span-models"), ("server", UpdateJoint.name, "span")):
        moves, whole = moves_of(view), on_list(asked, attacked.listed.get(attack))
        if span in filtered:
            add(view, "filter", filtered[span].score)
        scores = {name: solved(moves, whole, solver)[: 2 * pairs] for name, solver in SOLVERS.items()}
        for name, score in scores.items():
            add(view, name, score)
        if knowledge.noisy or knowledge.steps == 1:
            # Else the attack takes these gradients itself.
            half = [replace(move, start=move.start + move.move.float() / 2) for move in moves]
            add(view, "midpoint", solved(half, whole, joint._Unknown.log_odds))
        standard = [(score - np.nanmean(score)) / np.nanstd(score) for score in (scores["joint"], loss)]
        add(view, "with the final model", standard[0] + 0.3 * standard[1])
        for name, (other, places) in lists(whole, pairs).items():
            add(view, name, solved(moves, other, joint._Unknown.log_odds), places)
        if view == "server":
            following = next_of_group(attacked.simulation.federation)
            moved = [replace(move, clients=torch.tensor([following[int(move.clients[0])]])) for move in moves]
            add(view, "updates of another client", solved(moved, whole, joint._Unknown.log_odds))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS], choices=SETTINGS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    (given.out / "runs").mkdir(parents=True, exist_ok=True)
    tables = []
    for setting, seed in product(given.settings, given.seeds):
        path = given.out / "runs" / f"{setting}-{seed}.csv"
        if not path.exists():
            write_text(path, pd.DataFrame(rows_of(setting, seed)).round(4).to_csv(index=False))
        tables.append(pd.read_csv(path))
    write_text(given.out / "joint.csv", pd.concat(tables).to_csv(index=False))
