"""What a server takes from strangers, and what it does not."""

import io
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from shoal.core.errors import InputError
from shoal.data import Standardizer
from shoal.engine import ClientUpdate
from shoal_flower.messages import Limits, Offer, Refusal, RejectedReplyError
from shoal_flower.wire_codec import (
    pack_histograms,
    pack_identity,
    pack_offer,
    pack_reply,
    unpack_histograms,
    unpack_identity,
    unpack_offer,
    unpack_reply,
)

OFFERED = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
GOOD = ClientUpdate(1, 40, torch.tensor([1.0, 2.0, 3.0]))


def reply(**changes: object) -> RecordDict:
    """The records of a good reply, but for these numbers."""
    records = pack_reply(GOOD)
    records["update"] = MetricRecord({"cluster": 1, "examples": 40, **changes})
    return records


def with_array(array: Array, **others: Array) -> RecordDict:
    records = pack_reply(GOOD)
    records["model"] = ArrayRecord({"model": array, **others})
    return records


def announced(values: np.ndarray, **header: object) -> Array:
    """An array whose own bytes are other than what is announced."""
    array = Array(values)
    for name, value in header.items():
        setattr(array, name, value)
    return array


def pickled() -> Array:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}, {"b": 2}, {"c": 3}]), allow_pickle=True)
    return announced(np.zeros(3, np.float32), data=buffer.getvalue())


ANY = Limits()


def unpacked(records: RecordDict, limits: Limits = ANY, *, shares: bool = False) -> ClientUpdate | Refusal:
    reply = unpack_reply(records, OFFERED, limits, counts_best=shares)
    return reply if isinstance(reply, Refusal) else reply[0]


def test_an_offer_arrives_as_it_was_sent():
    risks, directives = torch.tensor([0.5, 0.61]).double(), {"l2": torch.tensor([0.0, 0.25]).double()}
    scale = Standardizer(("age", "ward"), (40.5, 1.0), (0.1, math.inf))
    offer = Offer(7, 3, "seed = 1", OFFERED, risks, directives, ("a", "b"), scale)
    received = unpack_offer(pack_offer(offer))
    assert received.scale == scale
    worded = Standardizer(("age", "sex"), (40.5, 0.0), (0.1, 1.0), ((), ("f", 'm "x"')), (40.0, 1.0))
    assert unpack_offer(pack_offer(replace(offer, scale=worded))).scale == worded
    assert unpack_offer(pack_offer(replace(offer, scale=None))).scale is None
    assert (received.round, received.client, received.config, received.classes) == (7, 3, "seed = 1", ("a", "b"))
    assert torch.equal(received.models, OFFERED)
    assert torch.equal(received.risks, risks)
    assert torch.equal(received.directives["l2"], directives["l2"])


def test_an_update_arrives_as_it_was_sent_bit_for_bit():
    update = unpacked(pack_reply(GOOD))
    assert isinstance(update, ClientUpdate)
    assert (update.cluster, update.examples, update.best) == (1, 40, None)
    assert torch.equal(update.end, GOOD.end)
    shares = unpacked(pack_reply(ClientUpdate(1, 40, GOOD.end, torch.tensor([15, 25]))), shares=True)
    assert isinstance(shares, ClientUpdate)
    assert shares.best.tolist() == [15, 25]


def test_a_refusal_says_why():
    assert unpacked(pack_reply(Refusal("the budget is spent"))) == Refusal("the budget is spent")


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (RecordDict(), "missing records"),
        (RecordDict({"model": pack_reply(GOOD)["model"]}), "missing records: \\['update'\\]"),
        (RecordDict({**pack_reply(GOOD), "more": ConfigRecord({})}), "unexpected records: \\['more'\\]"),
        (RecordDict({"model": ConfigRecord({}), "update": MetricRecord({})}), "the record 'model' is of another kind"),
        (with_array(Array(np.zeros(3, np.float32)), second=Array(np.zeros(3, np.float32))), "unexpected tensors"),
        (RecordDict({"model": ArrayRecord({}), "update": pack_reply(GOOD)["update"]}), "missing tensors"),
        (with_array(Array(np.zeros(4, np.float32))), "the announced array .* must be float32 \\(3,\\)"),
        (with_array(Array(np.zeros((1, 3), np.float32))), "the announced array .* must be float32 \\(3,\\)"),
        (with_array(Array(np.zeros(3, np.float64))), "float64"),
        (with_array(Array(np.zeros(3, np.int32))), "int32"),
        (with_array(Array(np.array([1.0, np.nan, 0.0], np.float32))), "NaN"),
        (with_array(Array(np.array([1.0, np.inf, 0.0], np.float32))), "NaN or infinite"),
        (with_array(announced(np.zeros(5, np.float32), shape=(3,))), "the array must be float32 \\(3,\\)"),
        (with_array(announced(np.zeros(3, np.float64), dtype="float32")), "the array must be float32 \\(3,\\)"),
        (with_array(announced(np.zeros(3, np.float32), data=b"no numbers")), "cannot be read"),
        (with_array(announced(np.zeros(10_000, np.float32), shape=(3,))), "bytes \\(at most"),
        (with_array(announced(np.zeros(3, np.float32), stype="pickle")), "pickle"),
        (with_array(pickled()), "cannot be read"),
        (reply(cluster=2), "cluster 2 is none of the 2"),
        (reply(cluster=-1), "cluster -1"),
        (reply(cluster=1.0), "1.0 is not an integer"),
        (reply(examples=0), "the number of examples must be in .* \\(got 0\\)"),
        (reply(examples=-5), "the number of examples must be in .* \\(got -5\\)"),
        (reply(examples=1_000_001), "the number of examples must be in .* \\(got 1000001\\)"),
        (reply(accuracy=1), "unexpected numbers"),
        (RecordDict({**pack_reply(GOOD), "update": MetricRecord({"cluster": 1})}), "missing numbers"),
        (with_array(Array(np.full(3, 100.0, np.float32))), "the update's norm must be at most 100 \\(got 171.5\\)"),
    ],
)
def test_what_cannot_be_merged_is_rejected_with_its_reason(records, why):
    limits = Limits(max_examples=1_000_000, max_update_norm=100.0)
    assert isinstance(unpacked(reply(), limits), ClientUpdate)
    with pytest.raises(RejectedReplyError, match=why):
        unpacked(records, limits)


@pytest.mark.parametrize("best", [[15, 24], [41, -1], [40], [10, 10, 20], [20.0, 20.0]])
def test_counts_by_model_must_be_of_the_clients_examples(best):
    with pytest.raises(RejectedReplyError):
        unpacked(reply(best=best), shares=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"std": (0.1,)}, r"'mean': 2, 'std': 1"),
        ({"words": ((),)}, r"'words': 1, 'fill': 0"),
        ({"fill": (1.0, 2.0, 3.0)}, r"'words': 0, 'fill': 3"),
    ],
)
def test_a_scale_whose_lists_have_several_lengths_is_no_offer(changes, why):
    scale = replace(Standardizer(("age", "ward"), (40.5, 1.0), (0.1, 0.1)), **changes)
    with pytest.raises(InputError, match=rf"not an offer of this version.*different lengths: .*{why}"):
        unpack_offer(pack_offer(Offer(1, 1, "", OFFERED, torch.ones(2).double(), scale=scale)))


@pytest.mark.parametrize("header", ["", "[]", '{"round": 1.0}'])
def test_a_message_of_another_program_is_no_offer(header):
    models = pack_offer(Offer(1, 1, "", OFFERED, torch.ones(2).double()))["models"]
    for records in ({"arrays": ArrayRecord({})}, {"models": models, "offer": ConfigRecord({"header": header})}):
        with pytest.raises(InputError, match="not an offer of this version"):
            unpack_offer(RecordDict(records))


def test_histograms_arrive_and_others_are_rejected():
    counts = np.arange(8.0).reshape(2, 4)
    assert np.array_equal(unpack_histograms(pack_histograms(counts), 4), counts)
    with pytest.raises(RejectedReplyError, match="2 x 5 counts"):
        unpack_histograms(pack_histograms(counts), 5)
    with pytest.raises(RejectedReplyError, match="NaN"):
        unpack_histograms(pack_histograms(counts * np.nan), 4)


def test_a_client_says_its_name_and_no_path():
    assert unpack_identity(pack_identity("north", None)) == ("north", None, False)
    assert unpack_identity(pack_identity("partition-2", 2)) == ("partition-2", 2, False)
    for name in ("../escape", "", "a b", "x" * 101):
        with pytest.raises(RejectedReplyError, match="not a client's name"):
            unpack_identity(pack_identity(name, None))
