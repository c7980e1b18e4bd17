"""Examples that a federation has more than once: counted by content, and left out of audits."""

import logging
from collections import Counter

import pytest
import torch

import shoal
from full_simulation import simulate_with
from shoal.core.randomness import Stream
from shoal.data.content import Copies, ExampleHashes, content_hashes
from shoal.data.swap_pairs import number_of_pairs, pair_records

DRAW = torch.Generator().manual_seed(0)


@pytest.fixture
def federation() -> shoal.Federation:
    """Of few different examples, so that many are copies."""
    draw = torch.Generator().manual_seed(1)

    def examples(count):
        x = torch.randint(0, 5, (count, 3), generator=draw).float()
        return x, torch.randint(0, 2, (count,), generator=draw)

    clients, holdout = [examples(16) for _ in range(5)], [examples(2) for _ in range(5)]
    return shoal.Federation.from_tensors(clients, test=examples(60), shadow=examples(10), holdout=holdout, classes=2)


def spelled(x, y):
    return [(tuple(row), label) for row, label in zip(x.tolist(), y.tolist(), strict=True)]


def parts(federation):
    """The examples of each client, each hold-out, test and shadow set, as values that can be counted."""
    own, held = (
        [spelled(each.x[each.indices_of(i)], each.y[each.indices_of(i)]) for i in range(len(each))]
        for each in (federation.clients, federation.holdout)
    )
    return own, held, spelled(federation.test.x, federation.test.y), spelled(federation.shadow.x, federation.shadow.y)


def test_copies_are_those_that_a_count_by_hand_finds(federation):
    own, held, test, shadow = parts(federation)
    trained = {each for client in own for each in client}
    found = ExampleHashes.from_federation(federation).copies()
    assert found == Copies(
        within=sum(len(client) - len(set(client)) for client in own),
        across=sum(len(set(client)) for client in own) - len(trained),
        test=sum(each in trained for each in test),
        holdout=sum(each in trained for client in held for each in client),
        shadow=sum(each in trained for each in shadow),
        examples=80 + 10 + 60 + 10,
    )
    assert min(found.within, found.across, found.test, found.holdout, found.shadow) > 0
    assert str(found).startswith(f"{found.total} of 160 examples are copies of training examples ({found.within} wi")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4, 4)], ids=str)
def test_hashes_are_equal_where_examples_are(dtype, shape):
    """Wherever they lie in memory, and in whatever block."""
    x = torch.randint(0, 2, (40, *shape), generator=DRAW).to(dtype)
    y = torch.randint(0, 2, (40,), generator=DRAW)
    found = content_hashes(x, y)
    alike = (x.flatten(1) if shape else x[:, None])[:, None] == (x.flatten(1) if shape else x[:, None])[None]
    assert torch.equal(torch.from_numpy(found[:, None] == found[None]), alike.all(dim=2) & (y[:, None] == y[None]))
    strided = torch.stack([x, x], dim=-1)[..., 0]
    assert (content_hashes(strided, y) == found).all()
    assert (content_hashes(x[7:9], y[7:9]) == found[7:9]).all()


def test_hashes_of_inputs_that_differ_in_one_place_differ():
    x = torch.zeros(784 + 1, 784)
    x[torch.arange(784), torch.arange(784)] = 1.0
    assert len(set(content_hashes(x, torch.zeros(785, dtype=torch.int64)).tolist())) == 785


def test_pairs_leave_out_all_repeated_examples(federation):
    own, held, test, shadow = parts(federation)
    count = Counter([*(e for client in (*own, *held) for e in client), *test, *shadow])
    records = pair_records(federation, Stream(0), "leave-out")
    clients = records.federation.clients
    asked = spelled(clients.x[records.rows], records.labels)
    assert len(asked) > 0
    assert all(count[each] == 1 for each in asked)
    assert number_of_pairs(federation, "leave-out") == len(records) < number_of_pairs(federation)


def test_copies_are_said_once_before_training(federation, caplog):
    model = shoal.create_model("logistic", shoal.VectorShape(inputs=3, classes=2))
    seen = []
    result = simulate_with(
        federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=2, duplicates="leave-out",
        watch=lambda *_: seen.append([each for each in caplog.messages if "are copies of training" in each]),
    )  # fmt: skip
    assert [len(each) for each in seen] == [0, 1, 1]
    audit = result.audit(references=2)
    assert audit.members == number_of_pairs(federation, "leave-out")
    assert len([each for each in caplog.messages if "are copies of training" in each]) == 1
    assert caplog.records[0].levelno == logging.WARNING


def test_an_audit_counts_the_attacked_members_with_copies(federation, caplog):
    own, held, test, shadow = parts(federation)
    count = Counter([*(e for client in (*own, *held) for e in client), *test, *shadow])
    records = pair_records(federation, Stream(0))
    members = spelled(records.federation.clients.x[records.rows], records.labels)[: len(records)]
    copied = sum(count[each] > 1 for each in members)
    assert 0 < copied == records.members_with_copies() < len(records)
    model = shoal.create_model("logistic", shoal.VectorShape(inputs=3, classes=2))
    result = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=2)
    for duplicates, said in ((None, 1), ("leave-out", 0)):
        caplog.clear()
        result.audit(references=2, duplicates=duplicates)
        assert sum("--leave-out-duplicates" in each for each in caplog.messages) == said


def test_a_federation_without_copies_says_nothing(caplog):
    x = torch.rand(40, 3, generator=DRAW)
    y = (x[:, 0] > 0.5).long()
    federation = shoal.Federation.from_tensors([(x[:20], y[:20])], test=(x[20:], y[20:]))
    model = shoal.create_model("logistic", shoal.VectorShape(inputs=3, classes=2))
    shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=1)
    assert not caplog.messages
