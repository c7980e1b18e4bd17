"""Audits of records that nothing was leaked of: intervals, lower ends and the deciding attack keep their levels."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, norm

import shoal
from attacked_run import attacked_run
from made_up_scores import made_up_pairs
from shoal.attacks import Population, ReferenceScores, UpdateScores
from shoal.attacks.updates.update_scores import NOBODY
from shoal.audit import audit_records, audit_updates
from shoal.audit.attacked_records import REFERENCE_ATTACKS, AuditRecords, attack_records
from shoal.audit.audit import wrong_sign
from shoal.audit.record_exposure import _distances, _opposites, _redrawn, record_exposure
from shoal.audit.record_table import measure, strongest
from shoal.audit.update_audit import UPDATE_ATTACKS
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.randomness import Stream
from shoal.engine import Engine
from shoal.metrics import membership_metrics
from shoal.replay.attack_inputs import records_of_run
from shoal.replay.reference_store import view_scores

AUDITS = 80
NAMES = [attack.name for attack in REFERENCE_ATTACKS]
NULLS = ("swapped", "noise")


def null(kind: str, seed: int, pairs: int = 60, references: int = 4):
    """Records that were not trained on; or that the reference models were, where the attacked model is noise."""
    if kind == "swapped":
        return made_up_pairs(pairs, references, seed=seed)
    records = made_up_pairs(pairs, references, seed=seed, effect=np.full(2 * pairs, 2.0))
    noise = np.random.default_rng(seed).normal(size=2 * pairs)
    return replace(records, scores=replace(records.scores, score=noise))


@pytest.fixture(scope="module", params=NULLS)
def audits(request):
    """What each attack finds on all records and on the first group, in each audit."""
    audits = []
    for seed in range(AUDITS):
        attacked = attack_records(null(request.param, seed))
        audits.append((attacked.on_all, attacked.measured("group")["0"]))
    return audits


def least(share: float, of: int) -> int:
    """The number of successes that is not undercut by chance in one of a thousand tests."""
    return int(binom.ppf(0.001, of, share))


def assert_intervals_hold_a_half(audits, name=""):
    for low, high in (("auc_low", "auc_high"), ("low", "high")):
        holds = sum(getattr(audit, low) <= 0.5 <= getattr(audit, high) for audit in audits)
        assert holds >= least(0.95, len(audits)), (name, low, holds / len(audits))


@pytest.mark.parametrize("scope", [0, 1], ids=["all", "group"])
@pytest.mark.parametrize("attack", NAMES)
def test_intervals_over_pairs_hold_a_half_as_often_as_they_say(audits, attack, scope):
    mine = [audit[scope][attack] for audit in audits]
    assert_intervals_hold_a_half(mine)
    within = sum(audit.accuracy <= audit.null_high + 1e-9 for audit in mine)
    # Balanced accuracies are discrete, so that "at most" may be somewhat more than 95 %, or less.
    assert within >= least(0.93, AUDITS)
    assert np.mean([audit.accuracy for audit in mine]) == pytest.approx(0.5, abs=0.02)


def test_intervals_are_no_wider_than_they_must_be(audits):
    """As if records were independent, those of attacks whose errors are alike in a pair held 0.5 in 98 to 100 %."""
    every = [audit for attacks, _ in audits for audit in attacks.values()]
    for low, high in (("auc_low", "auc_high"), ("low", "high")):
        assert np.mean([getattr(audit, low) <= 0.5 <= getattr(audit, high) for audit in every]) <= 0.985


def test_the_deciding_attack_is_at_chance_where_the_largest_is_above(audits):
    decides = [attacks[strongest(attacks)[0]] for attacks, _ in audits]
    assert np.mean([audit.accuracy for audit in decides]) == pytest.approx(0.5, abs=0.02)
    assert np.mean([max(one.accuracy for one in attacks.values()) for attacks, _ in audits]) > 0.53
    assert sum(audit.accuracy > audit.null_high + 1e-9 for audit in decides) <= AUDITS - least(0.93, AUDITS)
    # Of the first attack 2.5 %, and of all others together as much.
    certain = sum(strongest(attacks)[1] > 0.5 for attacks, _ in audits)
    assert certain <= AUDITS - least(0.95, AUDITS)


def tied_records(models: int, share: float, value: float, records: int = 400) -> tuple[AuditRecords, np.ndarray]:
    """Records of noise, each in exactly half of the models, and which of them have ``value`` in every model."""
    rng = np.random.default_rng(models)
    trained = rng.permuted(np.arange(records * models).reshape(records, models) % 2 == 0, axis=1)
    tied = np.arange(records) < share * records
    scores = np.where(tied[:, None], value, rng.normal(0, 2, (records, models)))
    others = np.where(tied[:, None], value, rng.normal(0, 2, (records, 4)))
    names, one_model = np.arange(records).astype(object), np.zeros(records, dtype=np.int64)
    z = Population(rng.normal(size=20), rng.normal(size=(20, models - 1)), one_model[:20])
    matrix = ReferenceScores(scores[:, 0], trained[:, 0], scores[:, 1:], trained[:, 1:], one_model, z)
    return AuditRecords(matrix, names, names, np.full(records, "all", dtype=object), others), tied


@pytest.mark.parametrize("value", [0.1, 3.3])
@pytest.mark.parametrize("models", [4, 6, 8, 16])
@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_records_of_one_score_in_every_model_are_at_chance_however_many_models_trained_on_each(share, models, value):
    records, tied = tied_records(models, share, value)
    for one in (records, replace(records, scores=replace(records.scores, population=None))):
        attacked = attack_records(one)
        missing = {*NAMES, *(["stack"] * (models > 8)), "other-clusters"} - attacked.attacks.keys()
        assert missing <= ({"lira", "lira-offline", "bavaria"} if share == 1 else set())
        for name, table in attacked.attacks.items():
            found = measure(table.take(tied))
            assert (found.auc, found.accuracy) == (0.5, 0.5), name


@pytest.fixture(scope="module")
def run():
    """The records of a run of two clusters on images, with all that three reference federations say of them."""
    shape = {"source": "digits", "clients": 12, "examples_per_client": 15, "shadow_examples": 200, "test_examples": 600}
    groups = {"few": {"share": 0.3, "rotation": [0, 0]}, "many": {"share": 0.7, "rotation": [180, 180]}}
    _, simulation = build(parse_config({
        "data": {**shape, "groups": groups}, "model": {"name": "mlp", "hidden": 16},
        "algorithm": {"name": "ifca", "clusters": 2, "rounds": 4}, "local": {"epochs": 3, "learning_rate": 0.1},
        "red_team": {"every": 0}, "engine": {"threads": 1},
    }, "test"))  # fmt: skip
    with Engine(simulation.setup.model, threads=1) as engine:
        attacked = attacked_run(simulation, engine)
        trained = [attacked.train_reference(i, engine) for i in range(4)]
        target = attacked.scores(engine)
        records, (seen, _) = (call(attacked, target, trained, engine) for call in (records_of_run, view_scores))
    return attack_records(replace(records, further={**records.further, **seen}))


def test_every_attack_on_a_run_is_at_chance_where_coins_say_who_is_a_member(run):
    rng, (table, *_) = np.random.default_rng(0), run.attacks.values()
    assert {*run.attacks} >= {
        "other-clusters", "posterior", "gap", "label-only", "boundary-distance", "trajectory",
        "span-models", "span", *NAMES,
    }  # fmt: skip
    assert measure(run.attacks["rmia"]).low > 0.5, "there is something to find"
    audits = []
    for _ in range(AUDITS):
        member = table.member ^ (rng.random(len(table) // 2) < 0.5)[table.pair]
        audits.append({name: measure(replace(rows, member=member)) for name, rows in run.attacks.items()})
    for name in run.attacks:
        mine = [audit[name] for audit in audits]
        assert_intervals_hold_a_half(mine, name)
        assert np.mean([audit.accuracy for audit in mine]) == pytest.approx(0.5, abs=0.02), name


@pytest.mark.parametrize("attack", UPDATE_ATTACKS, ids=lambda attack: attack.name)
def test_the_server_s_attacks_are_at_chance_on_updates_of_nothing(attack):
    clients, examples, unused, repeats = 4, 20, 60, 50
    client = np.append(np.repeat(np.arange(clients), examples), np.full(unused, NOBODY))
    kinds = np.arange(len(client)) % 2, np.arange(len(client)) // 2 % 3
    metrics = []
    for seed in range(repeats):
        values = np.random.default_rng(seed).standard_normal((3, 2, clients, len(client))).astype(np.float32)
        assignment = np.zeros((2, clients), dtype=np.int64)
        scores = UpdateScores(np.array([1, 2]), np.arange(clients), assignment, *values, label=kinds[1], client=client,
                              group=kinds[0], groups=("a", "b"))  # fmt: skip
        metrics.append(audit_updates(attack, scores).unused)
    assert np.mean([audit.auc for audit in metrics]) == pytest.approx(0.5, abs=0.02)
    assert_intervals_hold_a_half(metrics)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.7])
def test_the_interval_of_an_area_follows_what_pairs_have_in_common(correlation):
    rng, member, pair = np.random.default_rng(0), np.arange(160) < 80, np.tile(np.arange(80), 2)
    covariance = [[1.0, correlation], [correlation, 1.0]]
    truth = norm.cdf(1 / np.sqrt(2))
    holds = np.zeros(2)
    for _ in range(300):
        scores = rng.multivariate_normal([1.0, 0.0], covariance, 80).T.ravel()
        order = rng.permutation(160)
        for i, pairs in enumerate((pair, None)):
            of = None if pairs is None else pairs[order]
            metrics = membership_metrics(scores[order], member[order], threshold=0.5, pair=of)
            holds[i] += metrics.auc_low <= truth <= metrics.auc_high
    assert least(0.94, 300) <= holds[0] <= 300 * 0.99
    if correlation < 0:
        assert holds[1] < least(0.94, 300), "as if they were independent"


def test_the_rate_at_one_percent_allows_for_its_threshold():
    """Given the threshold, the interval lay above 0.01 in a tenth of all audits of nothing."""
    rng, member = np.random.default_rng(0), np.arange(600) < 300
    metrics = [membership_metrics(rng.normal(size=600), member, threshold=0.0) for _ in range(400)]
    above = sum(audit.tpr_at_1_percent_fpr_low > 0.01 for audit in metrics)
    assert above <= 400 - least(0.975, 400)
    holds = sum(audit.tpr_at_1_percent_fpr_low <= 0.01 <= audit.tpr_at_1_percent_fpr_high for audit in metrics)
    assert least(0.95, 400) <= holds


@pytest.mark.parametrize(("references", "paired"), [(4, True), (16, True), (16, False)])
def test_no_record_is_certain_in_95_percent_of_audits_of_nothing(references, paired):
    """Records differ in their deviation, so that one for all calls 4 to 7 of 1,000 certain each time."""
    certain = 0
    for seed in range(30):
        records = made_up_pairs(60, references, seed=seed)
        _, low = record_exposure(records.scores, Stream(seed), pair=records.pair if paired else None)
        assert np.isfinite(low).all()
        certain += bool((low > 0.5).any())
    assert certain <= 30 - least(0.95, 30)


def test_lower_ends_hold_at_once_and_prove_what_many_models_show():
    proved, broken = [], 0
    for seed in range(12):
        rng = np.random.default_rng(1000 + seed)
        effect = np.where(rng.random(200) < 0.3, rng.uniform(0.0, 6.0, 200), 0.0)
        records = made_up_pairs(100, 32, seed=seed, effect=effect)
        exposure, low = record_exposure(records.scores, Stream(seed), pair=records.pair)
        assert (low < exposure).all()
        broken += bool((low > norm.cdf(effect / 2) + 1e-12).any())
        proved.append((low > 0.5)[effect > 4].mean())
    assert broken <= 12 - least(0.95, 12)
    assert np.mean(proved) > 0.8


def test_with_few_models_nothing_is_certain_of_a_record():
    few = made_up_pairs(50, 3)
    exposure, low = record_exposure(few.scores, Stream(0), pair=few.pair)
    assert np.isfinite(exposure).all()
    assert np.isnan(low).all()
    alone = made_up_pairs(50, 1)
    assert all(np.isnan(values).all() for values in record_exposure(alone.scores, Stream(0), pair=alone.pair))


def test_clients_that_took_no_part_are_at_chance_and_those_that_did_are_told():
    audits = [audit_records(null("swapped", seed), Stream(seed)) for seed in range(AUDITS // 3)]
    assert sum(bool(wrong_sign(audit.figures())) for audit in audits) <= len(audits) - least(0.95, len(audits))
    reached = sum(audit.flat()["views.outsider.all.auc.at_least"] > 0.5 for audit in audits)
    assert reached <= len(audits) - least(0.95, len(audits))
    found = [audit.guesses for audit in audits]
    intervals = [[each[f"client-membership.outsider.auc{end}"] for end in (".low", "", ".high")] for each in found]
    assert sum(low <= 0.5 <= high for low, _, high in intervals) >= least(0.95, len(found))
    assert abs(np.mean(intervals, axis=0)[1] - 0.5) < 0.03
    told = audit_records(made_up_pairs(60, 4, effect=np.full(120, 8.0)), Stream(0)).guesses
    assert told["client-membership.outsider.auc.low"] > 0.7
    assert told["client-membership.outsider.clients"] == 60


@pytest.mark.parametrize(("references", "blocks"), [(2, [0, 1, 1]), (3, [0, 1, 1, 3]), (5, [0, 1, 1, 3, 4, 5])])
def test_one_coin_draws_two_reference_models_of_which_always_one_trained(references, blocks):
    """The attacked model has its own coin, as models without their opposite and an odd last one have."""
    inside = np.random.default_rng(0).random((20, 1 + references)) < 0.5
    inside[:, 2] = ~inside[:, 1]
    assert _opposites(inside).tolist() == blocks


def test_lower_ends_are_below_exposures_by_what_chance_alone_rarely_exceeds():
    """By as many standard errors for each record as the largest of all is in 5 % of redrawn memberships."""
    draw = np.random.default_rng(0)
    member, trained = np.arange(60) < 30, draw.random((60, 16)) < 0.5
    effect = np.linspace(0.0, 4.0, 60)
    score, reference = draw.normal(effect * member), draw.normal(effect[:, None] * trained)
    scores = shoal.ReferenceScores(score, member, reference, trained, np.zeros(60, dtype=np.int64))
    exposure, low = record_exposure(scores, shoal.Stream(0))
    values = np.column_stack([score, reference])
    values = values - values.mean(axis=1, keepdims=True)
    inside_of = np.column_stack([member, trained])
    sums = values.sum(axis=1), (values**2).sum(axis=1)
    distance, error, prior = _distances(values, inside_of, sums)
    inside = (low > 1e-6) & (exposure < 1 - 1e-6)
    errors_below = ((2 * norm.ppf(exposure) - 2 * norm.ppf(low)) / error)[inside]
    assert inside.sum() > 20
    assert np.allclose(2 * norm.ppf(exposure[inside]), distance[inside])
    assert np.allclose(errors_below, errors_below[0])
    redrawn = _redrawn(inside_of, None, shoal.Stream(0)("record exposure").numpy())
    largest = [np.nanmax(np.divide(*_distances(values, by_chance, sums, prior)[:2])) for by_chance in redrawn]
    exceeded = 1 + (largest > errors_below[0] * (1 + 1e-9)).sum(), 1 + (largest > errors_below[0] * (1 - 1e-9)).sum()
    assert exceeded[0] <= 0.05 * (len(largest) + 1) < exceeded[1]
