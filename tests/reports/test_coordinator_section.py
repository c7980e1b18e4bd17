"""The section of a run's page on its coordinator, made of rows of rounds.csv alone."""

import pandas as pd

from run_of_any_shape import summary_of
from shoal.control import LimitController
from shoal.metrics.summary import flatten, parse_summary, split_key
from shoal.reports.page import Section
from shoal.reports.run.coordinator_section import coordinator_section
from shoal.reports.sweep.report_spec import Labels
from unrendered import unrendered_figures

LAW = LimitController(target=0.1, max_cost=0.01, audit_factor=2.0)


def rounds_of(given: dict[str, list[list[float]]], over: list[list[float]], unmet: list[list[float]] | None = None):
    """Rows of two clusters: a list for each round has a number for each cluster. Estimates begin in round 2."""
    rows = []
    for number, shares in enumerate(over, start=1):
        for k in (0, 1):
            row = {
                "round": number,
                "cluster": k,
                "risk": 0.5 + 0.05 * k * (number > 1),
                "heldout_accuracy": 0.7,
                "clients": 20,
            }
            row |= {f"directive.{name}": values[number - 1][k] for name, values in given.items()}
            row |= {"over_limit": shares[k], "limit_unmet": 0.0 if unmet is None else unmet[number - 1][k]}
            rows.append(row)
    return pd.DataFrame(rows)


NAN = float("nan")
SHARES = [[NAN, NAN], [0.0, 0.4], [0.0, 0.4], [0.05, 0.2]]
STRENGTHS = [[0.0, 0.0], [0.0, 0.5], [0.0, 0.9], [0.0, 0.25]]


def section_of(rounds: pd.DataFrame, law: LimitController = LAW) -> Section:
    with unrendered_figures():
        section = coordinator_section(law, rounds)
    assert section is not None
    return section


def words(rounds: pd.DataFrame, law: LimitController = LAW) -> str:
    return " ".join(section_of(rounds, law).paragraphs)


def test_clusters_whose_limits_are_out_of_reach_are_counted():
    said = words(rounds_of({"l2": STRENGTHS}, SHARES, [[0.0, each] for each in (0, 1, 0, 1)]))
    assert "share of clients above their limit exceeds 0.100" in said
    assert "Defences within this cost could not keep the limits: cluster 1 in 2 rounds." in said
    assert "could not" not in words(rounds_of({"l2": STRENGTHS}, SHARES))


def test_steered_noise_and_randomised_answers_are_named():
    given = rounds_of({"dp_sgd": STRENGTHS}, SHARES)
    assert "No epsilon is stated" in words(given)
    assert "No epsilon" not in words(rounds_of({"l2": STRENGTHS}, SHARES))
    assert "Answers are randomised (epsilon 0.5 per answer)" in words(given, LimitController(vote_epsilon=0.5))


def test_the_figure_has_a_panel_for_each_thing_and_its_unit():
    figure = coordinator_section(
        LAW, rounds_of({"augmentation": STRENGTHS, "l2": [[0.0, 0.0]] * 4, "price": STRENGTHS}, SHARES)
    ).figures[0]
    for text in (
        "Risk reported to clients (balanced accuracy)", "Share of clients over their limit",
        "Augmentation: share of full strength", "Price of the model, in nats of loss", "target (0.100)",
        "chance: 0.500", "cluster 0", "cluster 1", "round",
    ):  # fmt: skip
        assert text in figure.image, text
    assert "L2: share" not in figure.image, "a knob that never moved has no panel"
    assert "Never asked for: l2." in figure.caption
    assert "advantage over chance times 2" in figure.caption
    # The estimate 0.55 is told as 0.5 + 2 * 0.05.
    assert "cluster 1, round 4: 0.600" in figure.image
    assert "cluster 1, round 3: 0.900" in figure.image


def test_rounds_that_say_nothing_of_it_have_no_section():
    assert coordinator_section(LAW, rounds_of({"l2": STRENGTHS}, SHARES).drop(columns="over_limit")) is None


# --- the summary ----------------------------------------------------------------------------------------------------


def steered_summary(**of_cluster_1: float):
    flat = summary_of(["a", "b"], 2)
    for k in (0, 1):
        flat |= {f"clusters.{k}.over_limit": 0.0, f"clusters.{k}.limit_unmet": 0, f"clusters.{k}.directive.l2": 0.0}
    return flat | {f"clusters.1.{name}": value for name, value in of_cluster_1.items()}


def test_the_keys_of_the_summary_are_taken_apart_and_put_together():
    flat = steered_summary()
    assert split_key("clusters.1.directive.shorter_training") == ("directive.shorter_training", None, 1)
    assert flatten(parse_summary(flat)).items() >= flat.items()


def test_a_sweep_names_what_a_coordinator_did():
    labels = Labels({})
    assert labels.key("larger.directive.shorter_training") == "directive shorter training, larger model"
    assert labels.key("model.few.over_limit") == "share of members over their limit, model of few"
    assert labels.key("smaller.limit_unmet") == "limits out of reach, smaller model"
    assert labels.key("clusters.0.directive.price") == "directive price, model 0"
