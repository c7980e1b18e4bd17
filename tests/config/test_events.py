"""[[events]] and [forgetting] in a file: read, written, refused, varied by a sweep; and the run's files about them."""

import pandas as pd
import pytest
import tomli_w

import shoal
from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.data.presence import Event
from shoal.forgetting import METHODS
from shoal.runs.files import decisive_settings
from shoal.runs.result import load, report_of
from shoal.sweeps.sweep_file import read_sweep

TABLE = {
    "data": {"source": "digits", "clients": 4, "examples_per_client": 12, "test_examples": 40},
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg", "rounds": 4},
    "red_team": {"every": 0, "attack": "gap"},
    "evaluation": {"baselines": False},
}
EVENTS = [{"round": 3, "leave": [1, "2"]}, {"round": 2, "join": [3]}]


def test_events_and_methods_are_read_written_and_read_again():
    config = parse_config(TABLE | {"events": EVENTS, "forgetting": {"method": "fed-eraser", "interval": 3}}, "here")
    assert config.events == (Event(3, leave=(1, "2")), Event(2, join=(3,)))
    assert config.forgetting.value == shoal.FedEraser(interval=3)
    assert parse_config(config.table(), "again") == config
    for name, cls in METHODS.items():
        assert parse_config(TABLE | {"forgetting": {"method": name}}, "here").forgetting.value == cls()
    plain = decisive_settings(parse_config(TABLE, "here").table())
    with pytest.raises(InputError, match=r"'forgetting\.interval' is a key of 'fed-eraser', not of 'continue'"):
        parse_config(TABLE | {"forgetting": {"interval": 3}}, "here")
    assert not [key for key in plain if key.startswith(("events", "forgetting"))], "other runs stay what they were"


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([{"round": 3, "leav": [1]}], r"unknown key 'events\[0\].leav'; did you mean 'leave'\?"),
        ([{"round": 3}], "'leave' or 'join'"),
        ([{"round": 0, "leave": [1]}], r"'events\[0\].round' must be at least 1 \(got 0"),
        ([{"round": 5, "leave": [1]}], r"must be in \[1, 4\] \(got 5\)"),
        ([{"round": 1, "join": [1]}], r"must be in \[2, 4\] \(got 1\)"),
        ([{"round": 2, "leave": [9]}], "events: client '9' is not in the federation; known: 0, 1, 2, 3"),
        ([{"round": 2, "leave": [1, 1]}], "client '1' left for good in round 2"),
        ([{"round": 2, "leave": [1]}, {"round": 3, "join": [1]}], "left for good in round 2"),
        ([{"round": 2, "leave": [1], "join": [1]}], "left for good in round 2"),
        ([{"round": 2, "join": [1]}, {"round": 3, "join": [1]}], "client '1'"),
        ([{"round": 4, "leave": [0, 1, 2, 3]}], "round 4 has no clients"),
        (3, r"'events' must be a list \(got 3"),
    ],
)
def test_events_that_cannot_be_are_refused_in_one_sentence(events, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        shoal.run(parse_config(TABLE | {"events": events}, "here"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_says_who_left_and_joined_on_its_page_and_in_its_files(tmp_path):
    config = parse_config(TABLE | {"events": EVENTS, "forgetting": {"method": "exact"}}, "here")
    out = shoal.run(config, tmp_path / "run")
    result = load(out)
    assert result.clients["client"].tolist() == [0, 3]
    assert (result.summary["left"], result.summary["joined"]) == (2, 1)
    assert (result.summary["forgetting.client_rounds"], result.summary["forgetting.full_client_rounds"]) == (3, 3)
    expected = {"client": [1, 2, 3], "first_round": [1, 1, 2], "last_round": [2, 2, None], "cluster": [0, 0, 0]}
    pd.testing.assert_frame_equal(result.presence[[*expected]], pd.DataFrame(expected), check_dtype=False)
    page = report_of(out).read_text()
    assert "Who left and joined" in page
    assert "2 leave before round 3" in page


def test_a_sweep_varies_the_method_and_the_events(tmp_path):
    (tmp_path / "base.toml").write_text(tomli_w.dumps(TABLE | {"events": EVENTS}))
    grid = {"forgetting.method": ["continue", "exact"], "events": [[{"round": 2, "leave": [0]}], []]}
    (tmp_path / "sweep.toml").write_text(tomli_w.dumps({"base": "base.toml", "seeds": [0], "grid": grid}))
    configs = [run.config for run in read_sweep(tmp_path / "sweep.toml").runs]
    assert [config.forgetting.value.name for config in configs] == ["continue", "continue", "exact", "exact"]
    assert [len(config.events) for config in configs] == [1, 0, 1, 0]
