"""The demonstration: its lines say what its runs' files say, and a command that fails ends it."""

import json
import re
from html import unescape
from itertools import product
from math import nan

import pytest

from experiment_scripts import experiment_script

demo = experiment_script("demo/demo")
SMALL = ("algorithm.rounds=2", "data.test_examples=120", "evaluation.every=9")


def made_up(accuracy, exposure=None, low=nan, high=nan):
    """A federation whose minority has an accuracy on 200 examples, and one exposure to every view."""
    keys = {"accuracy.overall": 0.8, "accuracy.minority": accuracy, "test_examples.minority": 200, "delta": 1e-5}
    audit = dict(zip(("", ".low", ".high"), (exposure, low, high), strict=True)) if exposure else {}
    named = {f"views.{view}.minority.accuracy{end}": audit[end] for view, end in product(demo.WHO, audit)}
    return demo.Outcome({**keys, **{f"epsilon.{view}": 5.6 for view in demo.WHO}}, named)


def said(ifca=0.9, protected=0.8, exposure=(0.52, 0.48, 0.56)):
    outcomes = {"server-alone": made_up(0.2), "clients-alone": made_up(0.6)}
    outcomes |= {"ifca": made_up(ifca, 0.7, 0.65, 0.75), "protected": made_up(protected, *exposure)}
    return demo.lines(outcomes, {"minority": 18, "majority": 42}, "demo.html")


def test_one_seed_ends_with_eight_lines_that_are_of_its_files_and_one_picture(tmp_path, capsys):
    out = tmp_path / "demo"
    assert demo.demonstrate(out, 1, references=1, changes=SMALL) == 0
    printed = capsys.readouterr().out
    ended = printed.strip().splitlines()[-8:]
    assert [line[:2] for line in ended] == [f"{number}." for number in range(1, 9)]
    audit = json.loads((out / "ifca" / "audit.json").read_text())
    server = [100 * audit[f"views.server.minority.accuracy{end}"] for end in ("", ".low", ".high")]
    assert re.search("the server {:.0f} \\({:.0f} to {:.0f}\\)".format(*server), ended[2])
    epsilon = json.loads((out / "protected" / "summary.json").read_text())["epsilon.client"]
    assert f"epsilon {epsilon:.1f} at delta 1e-05 towards other clients" in ended[6]
    assert str(out / "demo.html") in ended[7]
    page = unescape((out / "demo.html").read_text())
    assert page.count("<figure") == 1
    assert all(line[3:] in page for line in ended[:7])
    assert demo.demonstrate(out, 1, references=1, changes=SMALL) == 2


@pytest.mark.parametrize(
    ("exposure", "words"),
    [
        ((0.52, 0.48, 0.56), "look like the coin"),
        ((0.56, 0.51, 0.61), "beat the coin"),
        ((0.52, 0.4, 0.64), "had too few records to tell"),
    ],
)
def test_a_view_is_judged_by_its_interval(exposure, words):
    assert said(exposure=exposure)[3].endswith(f" a coin 50. All three {words}.")


def test_gains_and_losses_are_claimed_where_intervals_show_them():
    assert said()[1].endswith("federation pays.")
    assert said(ifca=0.62)[1].endswith("that federation pays cannot be told.")
    assert re.search(r"-10 points \(-17 to -3\), a loss\.$", said()[4])
    assert said(protected=0.88)[4].endswith("a loss that may be chance.")
    assert "+20 points (+11 to +29) above" in said()[5]
    assert said(protected=0.61)[5].endswith("which may be chance.")
