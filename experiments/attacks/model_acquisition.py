"""How many of CFL's models sybils obtain, what they learn of members by them, and what stops them at which cost.

    python experiments/attacks/model_acquisition.py OUT
    python experiments/attacks/model_acquisition.py OUT --seeds 0 --sybils 4

Of model_acquisition.toml's clients four of each group train until CFL has divided them. Then, each from that state:
sybils join with the examples of one group (the seeds take turns), by each attack of `ATTACKS`, under each answer of CFL
in `DEFENSES`; and three honest newcomers of each group join, under each answer, with all their examples or with ten.
After the attack of `HARVESTER` without a defence, members of all clusters are attacked by their loss, by the attacker's
own cluster's model, by the harvest, and by the harvest less the mean of the other clusters' models.

Written: OUT/shares.csv (a row an attack and number of sybils), OUT/newcomers.csv (a row a defence and seed),
OUT/membership.csv (a row an attacked cluster), OUT/model-acquisition.svg and OUT/model-acquisition.md.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from acquisition_page import acquisition_figure, page

from shoal.algorithms import CFL
from shoal.attacks import Acquisition, ModelAcquisition, logit_confidence
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.core.atomic_files import write_bytes, write_text
from shoal.core.errors import InputError, require
from shoal.data import Federation, Shards
from shoal.engine import Engine, State, Training
from shoal.metrics import membership_metrics
from shoal.simulation.simulation import Simulation

BASE = Path(__file__).with_suffix(".toml")
MEMBERS, NEWCOMERS = 4, 3
"""Clients of each group that train from the beginning, and that join later; one more has the attacker's examples."""

EVERY = 4
"""Rounds from one sybil's joining to the next: more than the splits on any way down a tree of four."""

SETTLE = 12
"""Rounds after which honest newcomers should have arrived; those that are refused try again in each of them."""

FEW = 10
"""Examples of newcomers that have few."""

HARVESTER = "adaptive"
ATTACKS = {
    "antiparallel": ModelAcquisition(),
    "antiparallel, full length": ModelAcquisition(scale=1.0),
    "random": ModelAcquisition(("random",) * 16),
    "adaptive": ModelAcquisition(("honest", "antiparallel", "away", "away")),
}
DEFENSES: dict[str, dict[str, Any]] = {
    "none": {},
    "at once": {"walk": "at-once"},
    "admission 0.1": {"admission": 0.1},
    "admission 0.3": {"admission": 0.3},
    "admission 0.5": {"admission": 0.5},
    "at once, admission 0.3": {"walk": "at-once", "admission": 0.3},
}
ATTACKED = (
    *((attack, "none") for attack in ATTACKS),
    *((attack, defense) for attack in ("antiparallel", "adaptive") for defense in DEFENSES if defense != "none"),
    *(("random", defense) for defense in ("at once", "admission 0.3")),
)


@dataclass(frozen=True, eq=False)
class Settled:
    """A federation whose clusters have been found.

    Args:
        training: of the clients of all parts; its data are on its engine.
        state: of the members, who are the clients at ``members``.
        members, newcomers, attackers: (n,) int64, positions in the federation, group by group.
    """

    training: Training
    state: State
    members: Tensor
    newcomers: Tensor
    attackers: Tensor

    @property
    def groups(self) -> int:
        """How many there are."""
        return len(self.attackers)

    def cluster_of_group(self) -> Tensor:
        """(G,) int64, the cluster that most members of each group are in."""
        by_group = self.state.assignment.view(self.groups, -1)
        return by_group.mode(dim=1).values

    def continued(self, federation: Federation, defense: str) -> Training:
        """The training of another federation under a defence."""
        algorithm = self.training.algorithm
        assert isinstance(algorithm, CFL)
        return replace(self.training, federation=federation, algorithm=replace(algorithm, **DEFENSES[defense]))


def settled(simulation: Simulation, engine: Engine) -> Settled:
    """Train the members until their clusters are found.

    Raises:
        InputError: a group with too few clients.
    """
    federation = engine.prepare(simulation.federation)
    by_group = [torch.nonzero(federation.group == g).flatten() for g in range(len(federation.groups))]
    least = MEMBERS + NEWCOMERS + 1
    require(
        min(map(len, by_group)) >= least,
        f"every group needs {least} clients; 'data.clients' gives {[len(each) for each in by_group]}",
    )
    parts = [torch.cat([each[a:b] for each in by_group]) for a, b in ((0, MEMBERS), (MEMBERS, least - 1), (-1, None))]
    training = replace(simulation.on(engine), federation=federation)
    of_members = replace(training, federation=federation.take(parts[0]))
    state = of_members.start()
    for after, _ in of_members.rounds(state, simulation.rounds):
        state = after
    return Settled(training, state, *parts)


def attacked(ready: Settled, attack: str, defense: str, group: int, sybils: int) -> Acquisition:
    """What sybils with the examples of one group obtain."""
    federation, own = ready.training.federation, ready.attackers[group]
    everyone = federation.take(torch.cat([ready.members, own.repeat(sybils)]))
    fresh = int(federation.ids.max()) + 1 + torch.arange(sybils)
    everyone = replace(everyone, ids=torch.cat([everyone.ids[: len(ready.members)], fresh]))
    training = ready.continued(everyone, defense)
    examples = federation.clients.take(own[None])
    return ATTACKS[attack].acquire(training, ready.state, examples, rounds=EVERY * sybils, every=EVERY)


def with_few_examples(federation: Federation, beyond: int) -> Federation:
    """The federation whose clients from position ``beyond`` on have their first `FEW` examples alone."""
    shards = federation.clients
    kept = [shards.indices_of(i)[: FEW if i >= beyond else None] for i in range(len(shards))]
    sizes = torch.tensor([len(each) for each in kept])
    return replace(federation, clients=Shards.from_indices(shards.x, shards.y, torch.cat(kept), sizes))


def newcomers(ready: Settled, defense: str, *, few: bool) -> dict[str, float]:
    """How honest newcomers fare: the shares in their own group's cluster, in another group's, in one that was divided
    off after they came, and refused to the end.

    And the share of all clusters' models that sybils would have that send honest updates on examples of all groups:
    the clusters which the first newcomers of the groups reach.
    """
    federation = ready.training.federation
    everyone = federation.take(torch.cat([ready.members, ready.newcomers]))
    everyone = with_few_examples(everyone, len(ready.members)) if few else everyone
    training = ready.continued(everyone, defense)
    state = training.with_newcomers(ready.state)
    for after, _ in training.rounds(state, state.round + SETTLE):
        state = after
    own = ready.cluster_of_group().repeat_interleave(NEWCOMERS)
    joined = torch.arange(len(ready.members), len(state.assignment))
    sent = _own_model(training, state)[joined]
    reached = torch.where(sent, state.assignment[joined], -1)
    return {
        "own": float((reached == own).double().mean()),
        "other": float(((reached != own) & torch.isin(reached, own)).double().mean()),
        "divided": float((sent & ~torch.isin(reached, own)).double().mean()),
        "refused": float((~sent).double().mean()),
        "honest_of_all_groups": len({*reached[::NEWCOMERS].tolist()} - {-1}) / ready.groups,
    }


def _own_model(training: Training, state: State) -> Tensor:
    """(N,) bool, who is sent its cluster's model in the next round, and not that of a split."""
    everyone = torch.arange(len(training.federation))
    (plan,) = training.algorithm.plan(state, training.cohort_of(state, everyone)).trainings
    return (plan.initial_params[plan.init_index] == state.models[state.assignment]).all(dim=1)


def membership(ready: Settled, found: Acquisition, group: int) -> list[dict[str, Any]]:
    """AUCs of the loss of members and of test examples of their group, cluster by cluster."""
    engine, federation = ready.training.engine, ready.training.federation
    clusters, harvest = ready.cluster_of_group().tolist(), found.latest()
    own = clusters[group]
    require(own in harvest, "the first sybil must reach its own group's cluster, for others to be compared with it")
    confidence = {}
    for k, each in harvest.items():
        both = [(federation.clients.x, federation.clients.y), (federation.test.x, federation.test.y)]
        confidence[k] = [logit_confidence(engine.outputs(each.model, x).cpu(), y.cpu()) for x, y in both]
    rows = []
    for g, k in enumerate(clusters):
        trained = ready.members[g * MEMBERS : (g + 1) * MEMBERS]
        members = federation.clients.take(trained).indices
        others = torch.nonzero(federation.test.group == g).flatten()
        is_member = torch.arange(len(members) + len(others)) < len(members)
        scores = {j: torch.cat([values[0][members], values[1][others]]) for j, values in confidence.items()}
        obtained = scores.get(k, scores[own])
        rest = [values for j, values in scores.items() if j != k]
        known = {"own_model": scores[own], "harvest": obtained}
        known["other_clusters"] = obtained - torch.stack(rest).mean(dim=0) if k in scores and rest else obtained
        aucs = {
            name: membership_metrics(values.numpy(), is_member.numpy(), threshold=0.0).auc
            for name, values in known.items()
        }
        rows.append({"cluster": k, "own": k == own, "obtained": k in scores, **aucs})
    return rows


def run(seed: int, sybils: int, changes: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of all three files of one seed."""
    config, simulation = build(read_config(BASE, [*changes, f"seed={seed}"]))
    rows: dict[str, list[dict[str, Any]]] = {"shares": [], "newcomers": [], "membership": []}
    with config.engine.engine(simulation.setup.model) as engine:
        ready = settled(simulation, engine)
        group = seed % ready.groups
        print(f"seed {seed}: {len(ready.state.models)} clusters", flush=True)
        for defense in DEFENSES:
            for few in (False, True):
                about = {"seed": seed, "defense": defense, "examples": FEW if few else "all"}
                rows["newcomers"].append(about | newcomers(ready, defense, few=few))
        for attack, defense in ATTACKED:
            found = attacked(ready, attack, defense, group, sybils)
            about = {"seed": seed, "attack": attack, "defense": defense, "group": group}
            rounds = max([each.round - found.join_rounds[0] for each in _first_of_each(found)], default=0)
            ends = {"joined": len(found.join_rounds), "rounds": rounds, "models": len(found.state.models)}
            rows["shares"] += [about | ends | {"sybils": s, "share": found.share(s)} for s in range(1, sybils + 1)]
            if (attack, defense) == (HARVESTER, "none"):
                rows["membership"] += [{"seed": seed, **row} for row in membership(ready, found, group)]
            print(f"seed {seed}: {attack}, {defense}: share {found.share():.2f}", flush=True)
    return rows


def _first_of_each(found: Acquisition) -> list[Any]:
    """The first model that was harvested of each cluster."""
    return list({each.cluster: each for each in reversed(found.harvest)}.values())


def acquire(out: Path, seeds: Sequence[int], sybils: int, changes: Sequence[str], command: str) -> str:
    """All seeds; the page that is written."""
    require(sybils >= 1, f"'--sybils' must be at least 1; got {sybils}")
    found = [run(seed, sybils, changes) for seed in seeds]
    frames = {name: pd.DataFrame([row for each in found for row in each[name]]) for name in found[0]}
    text = page(frames, command, seeds)
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        write_text(out / f"{name}.csv", frame.to_csv(index=False, float_format="%.6g"))
    write_bytes(out / "model-acquisition.svg", acquisition_figure(frames["shares"]))
    write_text(out / "model-acquisition.md", text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--sybils", type=int, default=8)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    command = f"python experiments/attacks/model_acquisition.py {given.out}"
    if given.seeds != [0, 1, 2, 3, 4]:
        command += f" --seeds {' '.join(map(str, given.seeds))}"
    if given.sybils != 8:
        command += f" --sybils {given.sybils}"
    command += "".join(f" --set {each}" for each in given.changes)
    try:
        print(acquire(given.out, given.seeds, given.sybils, given.changes, command))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
