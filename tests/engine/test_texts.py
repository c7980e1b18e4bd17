"""Federations of texts: words stay the numbers they are, through every backend, precision and number of threads."""

import json

import pytest
import torch
from torch import Tensor, nn

from full_simulation import simulate_with
from numbered_texts import numbered
from sgd_by_hand import CLOSE, by_hand, starts_of, trained
from shoal import FedAvg, Group, Partition, RedTeam, Stream, draw_preferences, partition_dataset, simulate
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.data import Federation
from shoal.engine import Engine, LocalSGD, resolve_backend
from shoal.models import Model, TextShape, create_model
from shoal.runs.result import report_of
from shoal.runs.run import run

VOCABULARY = 3000
LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)


class Bag(nn.Module):
    """The mean of words' vectors and a linear layer, which both backends can train."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, 4)
        self.output = nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.output(self.embedding(words).mean(dim=1))


def texts(count: int, name: str) -> tuple[Tensor, Tensor]:
    """Texts of 1 to 9 large numbers; each label has its words."""
    draw = Stream(4)(name).generator()
    y = torch.arange(count) % 3
    words = VOCABULARY - 3 * torch.randint(0, 300, (count, 9), generator=draw) - y[:, None]
    lengths = torch.randint(1, 10, (count, 1), generator=draw)
    return torch.where(torch.arange(9) < lengths, words, 0), y


@pytest.fixture
def federation() -> Federation:
    clients = [texts(size, f"client {size}") for size in (9, 14, 7, 12)]
    return Federation.from_tensors(clients, test=texts(30, "test"), shadow=texts(30, "shadow"), classes=3)


@pytest.fixture
def gru() -> Model:
    return create_model("gru", TextShape(VOCABULARY, 3))


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_training_on_words_is_sgd(federation, backend):
    model = Model(Bag)
    expected = by_hand(model, federation, LOCAL)
    torch.testing.assert_close(trained(model, federation, LOCAL, backend=backend), expected, **CLOSE)


def test_training_a_gru_is_sgd_and_moves_only_the_words_that_are_read(federation, gru):
    ends = trained(gru, federation, LOCAL)
    torch.testing.assert_close(ends, by_hand(gru, federation, LOCAL), **CLOSE)
    moved = gru.layout.views(ends - starts_of(gru, federation))["embedding.weight"].abs().amax(dim=2) > 0
    for i, row in enumerate(moved):
        words = federation.clients.x[federation.clients.indices_of(i)].unique()
        assert torch.equal(row.nonzero().flatten(), words[words > 0])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_words_stay_integers_in_every_precision(federation, precision, backend):
    """3,000 and 2,999 are one number in bfloat16; they must not be one word."""
    model = Model(Bag)
    with Engine(model, precision=precision, backend=backend) as engine:
        ready = engine.prepare(federation)
        for given, kept in ((federation.clients, ready.clients), (federation.test, ready.test)):
            assert kept.x.dtype == torch.int64
            assert torch.equal(kept.x, given.x)
        pair = torch.tensor([[VOCABULARY], [VOCABULARY - 1]])
        first, second = engine.outputs(model.init(Stream(0)), pair)
        assert not torch.equal(first, second)
    ends = trained(model, federation, LOCAL, precision=precision, backend=backend)
    moved = model.layout.views(ends - starts_of(model, federation))["embedding.weight"].abs().amax(dim=2) > 0
    words = federation.clients.x[federation.clients.indices_of(0)].unique()
    assert set(moved[0].nonzero().flatten().tolist()) <= set(words.tolist())


def test_a_gru_in_bfloat16_is_close_to_one_in_float32(federation, gru):
    rough, exact = trained(gru, federation, LOCAL, precision="bf16"), trained(gru, federation, LOCAL)
    start = starts_of(gru, federation)
    assert (rough - exact).norm() < 0.1 * (exact - start).norm()


def test_threads_change_no_bit_of_a_gru_s_federation(federation, gru):
    done = [
        simulate_with(federation, gru, FedAvg(), LOCAL, rounds=2, threads=threads, red_team=RedTeam(every=1))
        for threads in (1, 2)
    ]
    assert torch.equal(done[0].state.models, done[1].state.models)
    assert torch.equal(done[0].state.risks, done[1].state.risks)
    assert torch.isfinite(done[0].state.models).all()


def test_a_gru_is_trained_by_the_loop(gru):
    assert resolve_backend(gru) == "loop"
    with pytest.raises(InputError, match="backend 'vmap' cannot train recurrent layers; use 'loop'"):
        Engine(gru, backend="vmap")


def test_words_outside_the_vocabulary_are_refused(federation):
    small = create_model("gru", TextShape(20, 3))
    with pytest.raises(InputError, match=r"examples of shape \(9,\)"):
        simulate(federation, small, FedAvg(), LOCAL, rounds=1)


# --- dealing texts out, and whole runs ---------------------------------------------------------------------------


def test_texts_are_partitioned_unchanged():
    given = numbered(60)
    preferences = draw_preferences(4, (0.5, 0.8), 0.5, Stream(0))
    plan = Partition(clients=4, examples_per_client=10, shadow_examples=5, test_examples=8, dirichlet_alpha=1.0)
    groups = (Group("few", 0.25), Group("many", 0.75))
    dealt = partition_dataset(given, plan, groups, preferences, Stream(0))
    parts = [dealt.clients, dealt.shadow, dealt.test]
    assert all(part.x.dtype == torch.int64 for part in parts)
    number = torch.cat([(part.x[:, 0] - 1) * 10 + part.x[:, 1] - 1 for part in parts])
    assert len(number.unique()) == len(number) == 53
    assert torch.equal(torch.cat([part.y for part in parts]), given.labels[number])


@pytest.mark.parametrize("shift", [{"rotation": (0.0, 9.0)}, {"brightness": (0.5, 1.0)}])
def test_groups_that_shift_texts_are_refused(shift):
    plan = Partition(clients=2, examples_per_client=10, shadow_examples=5, test_examples=8)
    with pytest.raises(InputError, match=r"group 'all'.*texts"):
        plan.check(numbered(60), [Group("all", 1.0, **shift)])


def test_too_few_texts_are_refused():
    with pytest.raises(InputError, match=r"33 texts.*got 9"):
        Partition(clients=2, examples_per_client=10, shadow_examples=5, test_examples=8).check(
            numbered(9), [Group("all", 1.0)]
        )


def settings(**model):
    return parse_config(
        {
            "data": {
                "source": "numbered_texts:source",
                "clients": 4,
                "examples_per_client": 20,
                "shadow_examples": 30,
                "test_examples": 40,
            },
            "model": {"name": "gru"} | model,
            "algorithm": {"name": "ifca", "rounds": 2},
            "local": {"epochs": 1, "learning_rate": 0.5},
            "red_team": {"every": 1, "shadow_models": 2},
        },
        "test",
    )


def test_a_run_on_texts_ends_in_a_report_without_samples(tmp_path):
    out = run(settings(), tmp_path / "run")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["dataset"] == "numbered_texts:source"
    assert 0 <= summary["accuracy.overall"] <= 1
    page = report_of(out, allow_code=True).read_bytes()
    assert b"IFCA on numbered_texts:source, seed 0" in page
    assert b"<svg " in page
    assert b"data:image/png;base64," not in page


def test_the_resolved_configuration_of_texts_has_only_used_settings():
    decided, simulation = build(settings())
    assert (decided.model.classes, decided.model.hidden, decided.model.filters) == (2, None, None)
    assert decided.engine.backend == "loop"
    assert simulation.federation.clients.x.dtype == torch.int64
