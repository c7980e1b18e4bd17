"""Audits of federations that leak nothing: how often each interval holds chance, and what is found all the same.

    python experiments/audit/null_runs.py OUT
    python experiments/audit/null_runs.py OUT --seeds 0 1 --references 2

For each of three algorithms (IFCA, Ditto, local training) and each seed a small federation on digits is trained, with
its reference federations. Then nothing that is asked is leaked, in two ways, each drawn DRAWS times. "swapped": fair
coins say which record of each pair is called a member, whatever was trained on. "noise": every score of every model is
drawn from a normal distribution with the record's own mean and std. The audit is computed anew each time.

A federation whose file is in OUT/runs is not trained or audited again. Written: OUT/null.csv, a row for each attack,
and OUT/null.md. Of each attack: in how many audits the 95 % interval of the AUC and of the balanced accuracy holds 0.5
over all records, and over all groups and models; the mean of both figures over all records; how often the interval of
the true positive rate at 1 % false positives begins at 0.01 or below; and how often the balanced accuracy is at most
`accuracy.null_high`. Of the audits: how often a record is called certain to be exposed, how often
a group is called exposed to a view, how often the interval of the attack that decides lies above 0.5, its
mean, and how many clients have an exposure above `exposure_null_high`, and one whose lower end is above 0.5.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from shoal.audit import RecordTable, measure, record_exposure
from shoal.audit.attacked_records import AuditRecords, attack_records
from shoal.audit.audit import audit_records
from shoal.audit.final_attacks import exposure_of_clients
from shoal.audit.finding import findings
from shoal.audit.model_scores import Membership
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.atomic_files import write_text
from shoal.core.randomness import Stream
from shoal.engine import Engine
from shoal.replay.attack_inputs import records_of_run
from shoal.replay.reference_federations import AttackedRun
from shoal.replay.reference_store import view_scores
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import Simulation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import table

ALGORITHMS = ({"name": "ifca", "clusters": 2}, {"name": "ditto"}, {"name": "local"})


def configuration(algorithm: dict[str, Any], seed: int) -> dict[str, Any]:
    """A federation on digits: 20 clients with 20 images, upside up and upside down."""
    return {
        "seed": seed,
        "data": {
            "source": "digits", "clients": 20, "examples_per_client": 20, "shadow_examples": 300, "test_examples": 800,
            "groups": {
                "minority": {"share": 0.3, "rotation": [0, 0]}, "majority": {"share": 0.7, "rotation": [180, 180]},
            },
        },
        "model": {"name": "mlp", "hidden": 32},
        "algorithm": {"rounds": 8, **algorithm},
        "local": {"epochs": 5, "batch_size": 10, "learning_rate": 0.1},
        "red_team": {"every": 0, "attack": "loss-threshold"},
        "engine": {"threads": 1},
    }  # fmt: skip


def swapped(records: AuditRecords, random: np.random.Generator) -> AuditRecords:
    """The records with fair coins, one a pair, that say which of the two is called a member."""
    return replace(records, scores=replace(records.scores, member=records.scores.member ^ coins(records, random)))


def coins(records: AuditRecords, random: np.random.Generator) -> np.ndarray:
    """(M,) bool, the same for both records of a pair."""
    assert records.pair is not None
    return (random.random(int(records.pair.max()) + 1) < 0.5)[records.pair]


def certain(records: AuditRecords, stream: Stream) -> bool:
    """Whether a record is called certain where coins also say which of a pair each two reference models trained on."""
    trained, random = records.scores.reference_member.copy(), stream("coins").numpy()
    for r in range(0, trained.shape[1], 2):
        trained[:, r : r + 2] ^= coins(records, random)[:, None]
    _, low = record_exposure(replace(records.scores, reference_member=trained), stream, pair=records.pair)
    return bool((low > 0.5).any())


def noise(records: AuditRecords, random: np.random.Generator) -> AuditRecords:
    """The records with normal scores, of each record's own mean and standard deviation over the reference models."""
    old, population = records.scores, records.scores.population
    centre, width = old.reference.mean(axis=1), old.reference.std(axis=1)

    def drawn(columns: int) -> np.ndarray:
        return random.normal(centre[:, None], width[:, None], (len(old), columns))

    if population is not None:
        shape = population.reference.shape
        population = replace(population, score=random.normal(size=shape[0]), reference=random.normal(size=shape))
    scores = replace(old, score=drawn(1)[:, 0], reference=drawn(old.references), population=population)
    further = {}
    for name, attack in records.further.items():
        order = random.permutation(len(old))
        further[name] = replace(attack, score=attack.score[order], threshold=attack.threshold[order])
    models = None if records.all_models is None else drawn(records.all_models.shape[1])
    return replace(records, scores=scores, further=further, all_models=models)


def trained_run(simulation: Simulation, engine: Engine) -> AttackedRun:
    """The simulation, trained."""
    simulation = move_to_engine(simulation, engine)
    now = initial_state(simulation, engine)
    for after, _ in run_rounds(simulation, engine, now):
        now = after
    return AttackedRun.from_run(simulation, now.state, now.rows, engine)


def records_of(attacked: AttackedRun, references: int, engine: Engine) -> AuditRecords:
    """The records of a run with the scores of every view."""
    trained = [attacked.train_reference(i, engine) for i in range(references)]
    target = attacked.scores(engine)
    seen, _ = view_scores(attacked, target, trained, engine)
    records = records_of_run(attacked, target, trained, engine)
    return replace(records, further={**records.further, **seen})


def audited(table_of: dict[str, Any], references: int, draws: int) -> Iterator[dict[str, Any]]:
    """A row for each attack and scope of each audit."""
    _, simulation = build(parse_config(table_of, "null_runs.py"))
    with Engine(simulation.setup.model, threads=1) as engine:
        attacked = trained_run(simulation, engine)
        records = records_of(attacked, references, engine)
        members = Membership.of_deployed(attacked.state, attacked.deployed, simulation.member_rounds)
        trainers = members.trainers.numpy()
    for kind, draw in (("swapped", swapped), ("noise", noise)):
        for i in range(draws):
            stream = Stream(simulation.seed)("null", kind, i)
            null = draw(records, stream.numpy())
            audit, by_model = audit_records(null, stream), attack_records(null).measured("model")
            # A model that no record is asked of has no figures.
            nothing = {attack: measure(RecordTable.join([])) for attack in next(iter(by_model.values()))}
            by_model = [by_model.get(s, nothing) for s in range(trainers.shape[1])]
            clients = exposure_of_clients(by_model, trainers, simulation.federation)
            exposed = any(finding.verdict == "exposed" for finding in findings(audit.attacks))
            known = {
                "kind": kind, "draw": i, "certain": certain(null, stream), "said": exposed,
                "above_null": float((clients["exposure"] > clients["exposure_null_high"]).mean()),
                "exceeded": float((clients["exposure_low"] > 0.5).mean()),
            }  # fmt: skip
            yield from ({**row, **known} for row in audit.attacks.to_dict("records"))


def holds(rows: pd.DataFrame, metric: str) -> float:
    """The share of the intervals of a metric that hold 0.5, of those that were measured."""
    known = rows[rows[metric].notna()]
    return float(((known[f"{metric}.low"] <= 0.5) & (known[f"{metric}.high"] >= 0.5)).mean())


def of_attacks(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each kind of null and each attack."""
    table_rows = []
    for (kind, attack), mine in rows[rows["scope"] != "client"].groupby(["kind", "attack"], sort=False):
        everything, parts = mine[mine["scope"] == "all"], mine[mine["scope"] != "all"]
        row = {"null": kind, "attack": attack, "audits": len(everything)}
        for metric in ("auc", "accuracy"):
            row |= {f"{metric} holds 0.5": holds(everything, metric), f"{metric}, parts": holds(parts, metric)}
            row[f"mean {metric}"] = everything[metric].mean()
        rates = mine[mine["tpr_at_fpr_0.01"].notna()]
        row["TPR's low end <= 0.01"] = (rates["tpr_at_fpr_0.01.low"] <= 0.01).mean()
        row["at most null_high"] = (everything["accuracy"] <= everything["accuracy.null_high"]).mean()
        table_rows.append(row)
    return pd.DataFrame(table_rows)


def of_audits(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each kind of null and each algorithm."""
    table_rows = []
    for (kind, algorithm), mine in rows.groupby(["kind", "algorithm"], sort=False):
        first = mine[(mine["scope"] == "all") & mine["strongest"]]
        largest = mine[mine["scope"] == "all"].groupby(["seed", "draw"])["accuracy"].max()
        groups = mine[(mine["scope"] == "group") & mine["strongest"]]
        table_rows.append({
            "null": kind, "algorithm": algorithm, "audits": len(first), "record certain": first["certain"].mean(),
            "a group is called exposed": first["said"].mean(),
            "deciding attack above 0.5": (first["accuracy.low"] > 0.5).mean(),
            "mean of the deciding attack": first["accuracy"].mean(), "of the largest": largest.mean(),
            "of a group's deciding attack": groups["accuracy"].mean(),
            "its null_high": groups["accuracy.null_high"].mean(),
            "clients above null_high": first["above_null"].mean(),
            "clients certainly above 0.5": first["exceeded"].mean(),
        })  # fmt: skip
    return pd.DataFrame(table_rows)


def report(rows: pd.DataFrame) -> str:
    """Both tables as Markdown."""
    parts = []
    for title, frame in (("Attacks", of_attacks(rows)), ("Audits", of_audits(rows))):
        lines = [
            ["" if pd.isna(cell) else f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row]
            for row in frame.itertuples(index=False)
        ]
        parts.append(table(title, list(frame.columns), lines))
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the tables are written")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--references", type=int, default=4)
    parser.add_argument("--draws", type=int, default=5, help="of each kind of null, for each federation")
    options = parser.parse_args(arguments)
    folder, rows = options.out / "runs", []
    folder.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for algorithm in ALGORITHMS:
            path = folder / f"{algorithm['name']}-{seed}-{options.references}-{options.draws}.csv"
            if not path.exists():
                audits = audited(configuration(algorithm, seed), options.references, options.draws)
                frame = pd.DataFrame(audits).assign(algorithm=algorithm["name"], seed=seed)
                write_text(path, frame.to_csv(index=False))
            rows.append(pd.read_csv(path))
            print(f"{path.name}: done", file=sys.stderr, flush=True)
    joined = pd.concat(rows, ignore_index=True)
    write_text(options.out / "null.csv", of_attacks(joined).to_csv(index=False))
    write_text(options.out / "null.md", report(joined))
    print(report(joined))


if __name__ == "__main__":
    main()
