"""Attacks on secure sums by a dishonest server, against the nodes' own functions, and by a dishonest client."""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.attacks.queries.loss_histograms import EDGES
from shoal.config.schema import parse_config
from shoal.core.errors import ShoalError
from shoal_flower.client.client_app import secure_reply
from shoal_flower.client.policy import Ledger
from shoal_flower.flower_config import NodeSettings
from shoal_flower.messages import Offer
from shoal_flower.secure_sums.contributions import (
    HISTOGRAMS,
    check_summable,
    numbers_of,
    offer_digest,
    summed_histograms,
)
from shoal_flower.secure_sums.coordinated_sum import ClusterSums, CoordinatedSum
from shoal_flower.secure_sums.primitives import KnownKeys
from shoal_flower.secure_sums.protocol_messages import (
    Answer,
    BlockShares,
    Card,
    CountShares,
    Delivery,
    Letters,
    Question,
    RefusedError,
    Session,
    pack_question,
    unpack_answer,
)
from shoal_flower.wire_codec import pack_offer
from sums_in_process import TABLE, Nodes, People, served
from wire_federation import rows_of

ONE = {**TABLE, "algorithm": {"name": "fedavg", "rounds": 3}, "red_team": {"every": 0}}
ONE["secure_aggregation"] = {"min_clients": 3}
SIX = [f"partition-{i}" for i in range(6)]


@dataclass
class Server:
    """A server that asks the nodes of a folder whatever it likes."""

    folder: Path
    table: Mapping[str, object] = field(default_factory=lambda: ONE)
    policy: str = ""
    keys: Mapping[str, object] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    ids: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "policy.toml").write_text(self.policy)
        self.config = parse_config(self.table, "test")

    def node(self, name: str) -> NodeSettings:
        i = int(name.partition("-")[2])
        state = {"partition-id": i, "state-dir": str(self.folder / name), "policy": str(self.folder / "policy.toml")}
        return NodeSettings.read({**state, **self.keys})

    def sums(self, names, models, number=1, kind="train", run=None) -> ClusterSums:
        """The outcome of one sum, in a run of a new name by default."""
        count, length = models.shape
        offers = {
            name: Offer(
                number,
                self.ids.get(name, i),
                self.config.toml(),
                models,
                torch.full((count,), 0.5, dtype=torch.float64),
            )
            for i, name in enumerate(SIX)
        }

        def ask(questions: Mapping[str, Question]) -> Iterator[tuple[str, Answer, bytes]]:
            for name, question in questions.items():
                offer = pack_offer(offers[name]) if isinstance(question, Delivery) else None
                try:
                    reply = secure_reply(pack_question(question, offer), self.node(name))
                except ShoalError as error:
                    self.refused.append(str(error))
                    continue
                yield name, *unpack_answer(reply, question)

        histograms = kind == "histograms"
        form = lambda n: (  # noqa: E731
            (2 * (len(EDGES) + 1), HISTOGRAMS) if histograms else (length + 1, numbers_of(self.config, n).dtype)
        )
        session, section = Session(run or secrets.token_hex(16), number, kind), check_summable(self.config)
        common = (session, self.config.toml(), count * (1 + histograms), form, section.threshold)
        summing = CoordinatedSum(*common, offer_digest(offers["partition-0"]), ask, lambda *_: None)
        known = KnownKeys({}, self.folder / secrets.token_hex(4), fixed=False)
        return summing.run(names, known, section.min_clients)


def models_of(count: int, shift: float = 0.0):
    return torch.linspace(-1, 1, 650 * count).reshape(count, 650) * 0.01 + shift


def test_the_difference_of_two_sums_over_the_same_models_is_never_that_of_few_clients(tmp_path):
    server, models = Server(tmp_path), models_of(1)
    assert server.sums(SIX, models).counts.tolist() == [6]
    # The same round in a run of another name, and the same models as another round or another configuration.
    with pytest.raises(RefusedError, match="0 clients sent keys"):
        server.sums(SIX[:-1], models)
    assert set(server.refused) == {"the sum of round 1 of this configuration was answered already"}
    server.refused.clear()
    with pytest.raises(RefusedError, match="0 clients gave their shares"):
        server.sums(SIX[:-1], models, number=2)
    server.config = replace(server.config, seed=7)
    with pytest.raises(RefusedError, match="0 clients gave their shares"):
        server.sums(SIX[:-2], models)
    assert len(server.refused) == 5 + 4
    assert "differ by 2 from those of a sum over the same models, and must differ by at least 3" in server.refused[-1]
    # The same clients, or three fewer, and other models.
    assert server.sums(SIX, models, number=3).counts.tolist() == [6]
    assert server.sums(SIX[:3], models, number=4).counts.tolist() == [3]
    assert server.sums(SIX[:-1], models_of(1, 0.1), number=5).counts.tolist() == [5]
    assert Ledger.load(tmp_path / "partition-5" / "ledger.json").rounds == 2


def test_counts_of_histograms_do_not_tell_the_choice_of_one_client(tmp_path):
    team = {"every": 1, "estimator": "histogram", "attack": "loss-threshold", "histogram_epsilon": 1.0}
    two = {**ONE, "red_team": team, "algorithm": {"name": "ifca", "clusters": 2, "rounds": 3}}
    server, models, run = Server(tmp_path, two), models_of(2), "a" * 32
    server.sums(SIX, models, run=run)
    with pytest.raises(RefusedError, match="0 clients gave their shares"):
        server.sums(SIX[:-1], models_of(2, 0.1), kind="histograms", run=run)
    assert "must differ by at least 3" in server.refused[-1]


@pytest.mark.parametrize("ids", [{}, {"partition-4": 1, **{SIX[i]: 2 * i for i in (0, 1, 2, 3, 5)}}])
def test_no_half_of_a_histogram_sum_is_chosen_by_the_server_or_has_few_clients(tmp_path, ids):
    team = {"every": 1, "estimator": "histogram", "attack": "loss-threshold"}
    table = {**ONE, "red_team": team, "secure_aggregation": {"min_clients": 3}}
    server, run = Server(tmp_path, table, policy="histogram_epsilon = inf\n", ids=ids), "a" * 32
    server.sums(SIX, models_of(1), run=run)
    sums = server.sums(SIX, models_of(1), kind="histograms", run=run)
    # Six clients, three in each half, whatever their ids.
    assert sums.counts.tolist() == [3, 3]
    assert [summed_histograms(sums.blocks[half])[0].sum() for half in (0, 1)] == [60, 60]
    (tmp_path / "five").mkdir()
    other = Server(tmp_path / "five", table, server.policy)
    other.sums(SIX[:5], models_of(1), run=run)
    sums = other.sums(SIX[:5], models_of(1), kind="histograms", run=run)
    assert sums.counts.tolist() == [3, 2]
    assert set(sums.blocks) == {0}, "a half of two clients is opened by nobody"


@pytest.mark.parametrize(("share", "floor"), [(0.5, 2 / 3), (2 / 3, 0.8)])
def test_a_server_that_opens_sums_with_fewer_clients_than_the_policy_says_gets_none(tmp_path, share, floor):
    table = {**ONE, "secure_aggregation": {"min_clients": 3, "threshold": share}}
    server = Server(tmp_path, table, policy="" if floor == 2 / 3 else f"sum_threshold = {floor}\n")
    with pytest.raises(RefusedError, match="0 clients sent keys"):
        server.sums(SIX, models_of(1))
    assert f"got {share:g}" in server.refused[0]
    assert f"'sum_threshold' = {floor:g}" in server.refused[0]


def test_a_server_that_is_not_trusted_gets_sums_with_noise_alone(tmp_path):
    server = Server(tmp_path, policy="trusts_server = false\n")
    with pytest.raises(RefusedError, match="0 clients sent their numbers"):
        server.sums(SIX, models_of(1))
    assert "'trusts_server' is false; the server asks for training without DP-SGD noise" in server.refused[0]
    rule = {"dp_sgd": {"noise_multiplier": 1.0, "noise": "sum", "min_clients": 3}}
    server.config = parse_config({**ONE, "defenses": rule, "local": {"batch_size": "all", "steps": 1}}, "test")
    assert server.sums(SIX, models_of(1)).counts.tolist() == [6]


def test_two_runs_at_a_node_do_not_end_each_others_sums(tmp_path):
    one, two = Server(tmp_path), Server(tmp_path, {**ONE, "seed": 7})
    secure_reply_of = CoordinatedSum._letters

    def after_another_run(self, cards):
        CoordinatedSum._letters = secure_reply_of
        two.sums(SIX, models_of(1, 0.1))
        return secure_reply_of(self, cards)

    CoordinatedSum._letters = after_another_run
    assert one.sums(SIX, models_of(1)).counts.tolist() == [6]
    assert one.refused == two.refused == []
    kept = list((tmp_path / "partition-0" / "secure-sums").iterdir())
    assert {path.stat().st_mode & 0o077 for path in kept if path.suffix == ".json"} == {0}
    assert not [path for path in kept if path.name.startswith("sum-")]


def spoilt(people: People, culprit: str, kind: type, change) -> People:
    """The ``people`` whose ``culprit`` changes its answers of one kind."""

    def spoil(name, question, answer, blocks):
        return (
            (change(people.persons[name], answer), blocks)
            if (name, type(answer)) == (culprit, kind)
            else (answer, blocks)
        )

    people.spoil = spoil
    return people


def signed(person, card):
    return replace(card, signature=person.key.sign(card.signed_part(person.state.session, "seed = 0")))


SMALL_ORDER = bytes([1, *bytes(31)])


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        (Card, lambda person, card: signed(person, replace(card, mask=SMALL_ORDER)), "a key of small order"),
        (Card, lambda person, card: signed(person, replace(card, letters=bytes(32))), "a key of small order"),
        (CountShares, lambda _, a: replace(a, shares=dict.fromkeys(a.shares, bytes(32))), "a wrong share of a secret"),
        (BlockShares, lambda _, a: replace(a, shares={**a.shares, 0: dict.fromkeys(a.shares[0], bytes(32))}), "a wr"),
    ],
)  # fmt: skip
def test_a_client_that_would_end_a_sum_is_named_and_the_sum_goes_on(tmp_path, kind, change, reason):
    people = spoilt(People.of(tmp_path, [0, 1, 0, 1, 0, 0, 1, 0]), "client-00", kind, change)
    sums = people.summed(tmp_path)
    assert reason in people.rejected["client-00"]
    assert people.rejected.keys() == {"client-00"}
    assert people.errors == {}
    clients = 7 if kind is Card else 8
    assert len(sums.members) == clients
    for k in range(2):
        error = np.abs(people.decode(sums.blocks[k], clients) - people.plain(sums.members, k)).max()
        assert error < 1e-5


@pytest.mark.parametrize("letters", ["garbage", "wrong"])
def test_a_client_whose_secrets_nobody_can_give_back_is_named(tmp_path, letters, monkeypatch):
    people = People.of(tmp_path, [0, 1, 0, 1, 0, 0, 1, 0])
    if letters == "garbage":
        change = lambda _, answer: replace(answer, letters=dict.fromkeys(answer.letters, b"x" * 160))  # noqa: E731
        spoilt(people, "client-03", Letters, change)
    else:
        from shoal_flower.secure_sums import participant  # noqa: PLC0415 - what the culprit's program changes

        shares, answered = participant.shares_of, people.persons["client-03"].answer

        def dealing(question):
            monkeypatch.setattr(
                participant, "shares_of", lambda *about: [secrets.token_bytes(31) + b"\0" for _ in shares(*about)]
            )
            try:
                return answered(question)
            finally:
                monkeypatch.setattr(participant, "shares_of", shares)

        people.persons["client-03"].answer = dealing
    summing = people.coordinated()
    with pytest.raises(RefusedError):
        summing.run(list(people.persons), KnownKeys.load(tmp_path / "known-server", fixed=False), 3)
    assert summing.culprits == {"client-03"} == people.rejected.keys()


def test_a_run_goes_on_without_a_client_that_makes_its_sums_fail(tmp_path):
    """The round is lost. The next one is about the same models, so it leaves out as many clients as clients ask for."""
    nodes = Nodes(tmp_path)
    ask = nodes.ask

    def spoiling(question, messages, awaited, seconds, group):
        for answer in ask(question, messages, awaited, seconds, group):
            if question == "secure" and answer.node == 103 and "letters" in str(answer.content["secure"]["text"])[:12]:
                text = answer.content["secure"]["text"]
                sent = Letters(dict.fromkeys([n for n in SIX if n != SIX[3]], b"x" * 128))
                assert text.startswith('{"letters"')
                from shoal_flower.secure_sums.protocol_messages import pack_answer  # noqa: PLC0415

                yield replace(answer, content=pack_answer(sent))
                continue
            yield answer

    nodes.ask = spoiling
    served(tmp_path, nodes, ONE)
    by_round = {row["round"]: row["clients"] for row in rows_of(tmp_path / "run" / "sums.csv")}
    assert by_round == {"2": "3", "3": "5"}
    named = [
        row for row in rows_of(tmp_path / "run" / "events.csv") if row["client"] == SIX[3] and row["kind"] == "rejected"
    ]
    assert [row["round"] for row in named] == ["1"]
    assert nodes.refusals == []


def test_a_poisoned_sum_is_not_merged(tmp_path, monkeypatch):
    from shoal_flower.client import client_app  # noqa: PLC0415 - what the culprit's program changes

    honest = client_app.update_block

    def poisoned(update, models, config, clients):
        block = honest(update, models, config, clients)
        if poison and update.examples:
            poison.pop()
            block[1:] = numbers_of(config, clients).encode(np.full(len(block) - 1, 50.0))
        return block

    monkeypatch.setattr(client_app, "update_block", poisoned)
    poison = [True]
    one = {
        **ONE,
        "algorithm": {"name": "fedavg", "rounds": 2},
        "secure_aggregation": {"min_clients": 3, "max_update_norm": 1.0},
    }
    served(tmp_path, Nodes(tmp_path), one)
    assert [row["opened"] for row in rows_of(tmp_path / "run" / "sums.csv")] == ["0", "1"]
    (event,) = [row for row in rows_of(tmp_path / "run" / "events.csv") if row["kind"] == "rejected"]
    assert "the sum of cluster 0: the norm of a mean update" in event["reason"]
