"""Queries with copies: which copies, the mean of their scores, the same for attacked and reference models, and where
they are kept.
"""

from dataclasses import replace

import pytest
import torch

from attacked_run import attacked_run
from shoal.attacks.membership_attack import logit_confidence
from shoal.attacks.queries.augmented_queries import MAX_QUERIES, image_copies, mean_confidence, require_queries
from shoal.cli.app import main
from shoal.config.build import build
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine
from shoal.replay.reference_store import reference_scores
from shoal.runs.run import run


def test_the_copies_are_two_flips_of_nine_shifts_by_an_eighth():
    image = torch.arange(1.0, 257.0).view(1, 1, 16, 16)
    copies = image_copies(image, MAX_QUERIES)
    assert len({tuple(copy.flatten().tolist()) for copy in copies}) == MAX_QUERIES
    assert torch.equal(copies[0], image)
    assert torch.equal(copies[1], image.flip(3))
    padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
    windows = [padded[..., i : i + 16, j : j + 16] for i in (0, 2, 4) for j in (0, 2, 4)]
    for window in windows:
        assert any(torch.equal(window, copy) for copy in copies)
        assert any(torch.equal(window.flip(3), copy) for copy in copies)


def test_the_score_is_the_mean_of_the_copies_scores(model):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(700, 1, 6, 6, generator=draw), torch.randint(0, 3, (700,), generator=draw)
    row, rows = model.init(Stream(3)), torch.arange(699, -1, -1)
    with Engine(model) as engine:
        for number in (1, 2, 5):
            copies = image_copies(x[rows], number)
            expected = torch.stack([logit_confidence(engine.outputs(row, copy), y[rows]) for copy in copies]).mean(0)
            found = mean_confidence(engine, row, x, y[rows], rows, number)
            torch.testing.assert_close(found, expected)
        assert len(mean_confidence(engine, row, x, y[:0], rows[:0], 5)) == 0


@pytest.fixture(scope="module")
def attacked(toy_config):
    """A toy run attacked with so many queries, and its engine."""
    _, simulation = build(toy_config(algorithm__name="ifca"))
    with Engine(simulation.setup.model, threads=1) as engine:
        yield lambda queries: attacked_run(simulation, engine, queries=queries), engine


def test_all_models_are_asked_the_same_copies_and_training_is_the_same(attacked):
    make, engine = attacked
    once, twice = make(1), make(2)
    one, two = once.train_reference(0, engine), twice.train_reference(0, engine)
    assert torch.equal(one.member, two.member)
    assert torch.equal(one.trajectory, two.trajectory), "of the records themselves"
    for name in ("score", "population"):
        assert not torch.equal(getattr(one, name), getattr(two, name))
    everyone = torch.arange(2 * len(twice.records))
    model, x = twice.state.models[0], twice.records.federation.clients.x
    expected = mean_confidence(engine, model, x, twice.records.labels, twice.records.rows, 2)
    torch.testing.assert_close(twice.all_models(engine)[:, 0], expected)
    own = twice.scores(engine).model[twice.records.client]
    torch.testing.assert_close(twice.all_models(engine)[everyone, own], twice.scores(engine).score)
    note = "the score of each record is the mean over 2 mirrored and shifted copies"
    assert (note in twice.notes, note in once.notes) == (True, False)


def test_scores_of_other_numbers_of_queries_are_not_taken_over(attacked, tmp_path):
    make, engine = attacked
    found = {}
    for queries in (1, 2):
        run = make(queries)
        (found[queries],) = reference_scores(run, run.scores(engine), 1, engine, folder=tmp_path)
    assert torch.equal(found[2].score, make(2).train_reference(0, engine).score)
    # Even where both numbers of copies had the same scores, as of images that are symmetric.
    same = make(1).scores(engine)
    (again,) = reference_scores(replace(make(2)), same, 1, engine, folder=tmp_path)
    assert torch.equal(again.score, found[2].score)


def test_an_audit_asks_several_queries_from_the_command_line(toy_config, tmp_path, capsys):
    out = run(toy_config(algorithm__name="ifca"), tmp_path / "run")
    assert main(["audit", str(out), "--references", "1", "--queries", "2", "--quiet"]) == 0
    assert '"queries": 2' in (out / "audit.json").read_text()
    assert {path.name for path in (out / "references" / "queries-2").iterdir()} >= {"000.safetensors"}
    assert main(["audit", str(out), "--references", "1", "--queries", "19", "--quiet"]) == 2
    assert "'queries' must be at most 18 (got 19)" in capsys.readouterr().err
    assert main(["audit", str(out), "--queries", "0", "--quiet"]) == 2
    assert "'queries' must be" in capsys.readouterr().err
    assert main(["audit", "--scores", str(tmp_path), "--queries", "18"]) == 2
    assert "'--queries' needs a run's directory" in capsys.readouterr().err


def test_copies_of_what_is_no_image_are_one_sentence():
    with pytest.raises(InputError, match=r"shape \(7,\)\)"):
        require_queries(2, (7,))
    assert require_queries(1, (7,)) == 1
