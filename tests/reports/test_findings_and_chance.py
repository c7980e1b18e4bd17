"""No sentence takes chance for a finding: of runs that learned nothing at most 5 % say one, of a leak all do."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from shoal.audit.audit import attack_row
from shoal.audit.finding import Estimate, exposure_summary, findings
from shoal.audit.record_table import strongest
from shoal.metrics import MembershipMetrics, membership_metrics
from shoal.metrics.membership import roc_with_auc
from shoal.metrics.summary import Summary
from shoal.reports.run.run_verdict import answer
from shoal.reports.sweep.report_spec import Labels, ReportSpec
from shoal.reports.sweep.seed_statistics import SeedStatistics
from shoal.reports.sweep.sweep_tables import Settings, sweep_headlines
from shoal.runs.comparison import describe_difference

RUNS = 100
GROUPS = {"few": 60, "many": 400}
"""Records of a kind in each group; as many test examples."""


def attacked(rng: np.random.Generator, records: int, leak: float) -> MembershipMetrics:
    """An attack on so many members and non-members whose scores differ by ``leak`` standard deviations."""
    member = np.arange(2 * records) < records
    return membership_metrics(rng.normal(leak * member), member, threshold=leak / 2)


def summary_of_run(rng: np.random.Generator, *, leak: float, accuracy: float = 0.7) -> Summary:
    groups = {}
    for name, records in GROUPS.items():
        mia, by_loss = attacked(rng, records, leak / 2), attacked(rng, records, leak)
        groups[name] = {
            "accuracy": rng.binomial(records, accuracy) / records, "test_examples": records,
            "most_frequent_class": 0.7, "mia": mia.accuracy, "mia_low": mia.low, "mia_high": mia.high,
            "loss_threshold": by_loss.accuracy, "loss_threshold_low": by_loss.low, "loss_threshold_high": by_loss.high,
        }  # fmt: skip
    has_property = np.arange(120) < 40
    scores = rng.normal(leak * has_property)
    auc, right = roc_with_auc(scores, has_property, None)[2], float(np.mean(scores[:40] > scores[40:80]))
    overall = {"accuracy.overall": float(np.mean([each["accuracy"] for each in groups.values()])),
               "violations.total": 0, "exceeded.total": 0, "migrated": 0,
               "property.auc": auc, "property.updates": 120, "property.positives": 40,
               "property.pairs": 40, "property.auc_counterfactual": right}  # fmt: skip
    return Summary({"algorithm": "fedavg", "dataset": "made up"}, overall, groups, {0: {"clients": 6}})


def audit_said(rng: np.random.Generator, leak: float) -> str:
    """The summary of an audit by nine attacks; the first was chosen beforehand."""
    rows = []
    for group in GROUPS:
        found = {attack: attacked(rng, 300, leak) for attack in ("lira", "gap", *map(str, range(7)))}
        decides, _ = strongest(found)
        for i, (name, each) in enumerate(found.items()):
            flags = {"chosen": i == 0, "strongest": name == decides}
            rows.append(attack_row("group", group, name, "outsider", each, **flags))
    return exposure_summary(findings(pd.DataFrame(rows)))


def comparison_said(rng: np.random.Generator, leak: float) -> str:
    first, other = summary_of_run(rng, leak=0.0), summary_of_run(rng, leak=leak, accuracy=0.7 - 0.4 * (leak > 0))
    accuracies = [Estimate.of_rate(each.overall["accuracy.overall"], 200) for each in (first, other)]
    return describe_difference(first, other, (accuracies[0], accuracies[1]), "one", "other", "accuracy")


def exposure_said(rng: np.random.Generator, leak: float) -> str:
    return answer(summary_of_run(rng, leak=leak))


SENTENCES: dict[str, tuple[Callable[[np.random.Generator, float], str], tuple[str, ...]]] = {
    "exposure of a run": (exposure_said, ("Exposed:",)),
    "property attack": (exposure_said, ("The property is exposed",)),
    "audit": (audit_said, ("Exposed:",)),
    "exposure of two runs": (comparison_said, ("raises", "lowers")),
    "accuracy of two runs": (comparison_said, ("gains accuracy", "loses accuracy")),
}


@cache
def said_of(say: Callable[[np.random.Generator, float], str]) -> tuple[list[str], list[str]]:
    """What is said by chance, and what of a leak: the same runs for all sentences of a text."""
    rng = np.random.default_rng(5)
    # Where the number of attacks were forgotten, most audits would find something.
    runs, leak = (RUNS // 2, 1.0) if say is audit_said else (RUNS, 2.0)
    return [say(rng, 0.0) for _ in range(runs)], [say(rng, leak) for _ in range(20)]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_chance_is_no_finding_and_a_leak_is_one(sentence: str) -> None:
    say, words_of = SENTENCES[sentence]
    by_chance, of_a_leak = said_of(say)
    findings_of = sum(any(words in said for words in words_of) for said in by_chance)
    assert findings_of <= stats.binom.ppf(0.99, len(by_chance), 0.05)
    assert all(any(words in said for words in words_of) for said in of_a_leak)


def test_a_difference_has_its_direction() -> None:
    rng = np.random.default_rng(0)
    said = comparison_said(rng, 2.0)
    assert "loses accuracy" in said
    assert "raises the MIA accuracy on few" in said
    first, other = summary_of_run(rng, leak=2.0), summary_of_run(rng, leak=0.0)
    exact = Estimate.of_rate(0.5, 400), Estimate.of_rate(0.8, 400)
    back = describe_difference(first, other, exact, "one", "other", "accuracy")
    assert "gains accuracy (0.500, now 0.800: +0.300, 95 % interval +0.2" in back
    assert "lowers the MIA accuracy on many" in back


@pytest.mark.parametrize(("seeds", "counts"), [(2, True), (3, True), (2, False), (6, False)])
def test_differences_of_a_sweep_are_findings_by_chance_in_5_percent(seeds: int, counts: bool) -> None:
    """Counts are integers: in few seeds they often differ by the same number, without any spread."""
    rng, axes, found = np.random.default_rng(1), {"algorithm": ["a", "b"]}, 0
    results = pd.DataFrame({"algorithm": ["a", "b"] * seeds, "seed": np.repeat(range(seeds), 2)}).assign(run="")
    for _ in range(2 * RUNS):
        drawn = rng.integers(0, 2, 2 * seeds) if counts else rng.normal(size=2 * seeds)
        made = SeedStatistics(results.assign(**{"accuracy.overall": drawn}), axes, range(seeds))
        said, _ = sweep_headlines(Settings.of(made, ReportSpec(), Labels({})))
        found += "The difference is shown" in said.text
    assert found <= stats.binom.ppf(0.99, 2 * RUNS, 0.05)
