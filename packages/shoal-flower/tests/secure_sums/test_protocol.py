"""Secure sums: equal to plain sums, with dropouts in every exchange, and what a dishonest server or client gets."""

from dataclasses import replace

import numpy as np
import pytest

from shoal_flower.secure_sums import coordinated_sum
from shoal_flower.secure_sums.primitives import KnownKeys
from shoal_flower.secure_sums.protocol_messages import (
    COUNTS,
    BlockShares,
    CountShares,
    Delivery,
    Masked,
    Members,
    RefusedError,
    SumMembers,
    Transcript,
    counts_part,
    half_of,
)
from sums_in_process import People, Person, a_session

EIGHT = [0, 1, 0, 1, 0, 0, 1, 0]


def test_a_sum_by_cluster_is_the_plain_sum_and_counts_are_exact(tmp_path):
    people = People.of(tmp_path, EIGHT)
    sums = people.summed(tmp_path)
    assert sums.counts.tolist() == [5, 3]
    for k in range(2):
        assert np.abs(people.decode(sums.blocks[k]) - people.plain(sums.members, k)).max() < 1e-5


@pytest.mark.parametrize("stage", ["opening", "roster", "delivery", "members", "transcript"])
def test_clients_that_fall_silent_in_any_exchange_cost_their_own_numbers_at_most(tmp_path, stage):
    people = People.of(tmp_path, EIGHT)
    people.dropped = {"client-00": stage, "client-03": stage}
    sums = people.summed(tmp_path)
    sent = stage in ("members", "transcript")
    assert len(sums.members) == (8 if sent else 6)
    assert sums.counts.tolist() == ([5, 3] if sent else [4, 2])
    assert people.errors == {}
    clients = 6 if stage == "opening" else 8
    error = np.abs(people.decode(sums.blocks[0], clients) - people.plain(sums.members, 0)).max()
    assert error < 1e-5
    assert set(sums.blocks) == ({0, 1} if sent else {0}), "a cluster of two is not opened"


def test_the_sum_of_a_small_cluster_is_opened_by_nobody(tmp_path):
    people = People.of(tmp_path, [0, 0, 0, 0, 0, 1, 1])
    sums = people.summed(tmp_path)
    assert sums.counts.tolist() == [5, 2]
    assert set(sums.blocks) == {0}
    given = [answer for person in people.persons.values() for _, answer in person.answers]
    assert all(answer.shares.keys() == {0} for answer in given if isinstance(answer, BlockShares))
    # A server that asks for more has to lie about the counts, which clients open themselves.
    other = People.of(tmp_path / "other", [0, 0, 0, 0, 0, 1, 1])
    with pytest.raises(RefusedError, match="0 clients gave their shares"):
        other.summed(tmp_path / "other", least=2)


def test_too_few_clients_open_nothing(tmp_path):
    people = People.of(tmp_path, EIGHT)
    people.dropped = {f"client-0{i}": "members" for i in range(3)}
    with pytest.raises(RefusedError, match="5 clients gave their shares of the secrets of 'client-00', and 6"):
        people.summed(tmp_path)


def test_both_shares_of_one_client_are_given_by_nobody(tmp_path):
    """A server that tells some clients that another has dropped out, and others that it has not, gets neither secret
    often enough, and the counts that it would need to go on are refused."""
    people = People.of(tmp_path, EIGHT)
    victim = "client-03"

    asked = people.ask
    shares: dict[str, list[bytes]] = {"mask": [], "seed": []}

    def split(questions):
        told = {}
        for i, (name, question) in enumerate(questions.items()):
            told[name] = question
            if isinstance(question, Members) and i % 2 and name != victim:
                told[name] = replace(question, names=tuple(n for n in question.names if n != victim))
        for name, answer, blocks in asked(told):
            if isinstance(answer, CountShares):
                kind = "seed" if victim in told[name].names else "mask"
                shares[kind].append(answer.shares[victim])
            yield name, answer, blocks

    people.ask = split
    with pytest.raises(RefusedError):
        people.summed(tmp_path)
    assert len(shares["seed"]) < 6
    assert len(shares["mask"]) < 6
    assert sum(map(len, shares.values())) == 8, "and each client gave one"
    person = people.persons["client-00"]
    for names in (tuple(people.persons), tuple(n for n in people.persons if n != victim)):
        with pytest.raises(RefusedError, match="answered already"):
            person.answer(Members(person.state.session, names))


def test_a_card_of_another_key_is_refused_by_every_client(tmp_path):
    people = People.of(tmp_path, EIGHT)
    people.summed(tmp_path)
    stranger = Person("client-03", 0, people.persons["client-03"].update, KnownKeys.load(tmp_path / "x", fixed=False))
    people.persons["client-03"] = stranger
    session = a_session(2)
    # The server, who has pinned keys as well, leaves it out; one that does not is refused.
    sums = people.summed(tmp_path, session=session)
    assert "another key" in people.rejected["client-03"]
    assert "client-03" not in sums.members
    with pytest.raises(RefusedError, match="1 clients sent shares"):
        people.summed(tmp_path / "elsewhere", session=a_session(3))
    assert "another key than in" in people.errors["client-00"]


def test_a_name_that_is_not_in_a_nodes_own_list_is_refused(tmp_path):
    people = People.of(tmp_path, EIGHT)
    listed = tmp_path / "listed"
    listed.write_text("".join(f"{n} {p.key.public} a comment\n" for n, p in people.persons.items() if n != "client-07"))
    people.persons["client-00"].known = KnownKeys.load(listed, fixed=True)
    people.summed(tmp_path)
    assert people.errors == {"client-00": f"the client 'client-07' is not in {listed}"}


def changed(people: People, stage: type, change):
    """The server ``people`` face, who changes what it says to client-00 in one exchange."""
    asked = people.ask

    def ask(questions):
        told = {n: change(q) if isinstance(q, stage) and n == "client-00" else q for n, q in questions.items()}
        yield from asked(told)

    people.ask = ask
    return people


@pytest.mark.parametrize(
    ("stage", "change", "reason"),
    [
        (
            SumMembers,
            lambda q: replace(q, cards=(*q.cards[:-1], replace(q.cards[-1], mask=b"9" * 32))),
            "not signed by",
        ),
        (SumMembers, lambda q: replace(q, cards=q.cards[1:]), "own card is missing"),
        (SumMembers, lambda q: replace(q, cards=(*q.cards, q.cards[-1])), "or its key is repeated"),
        (SumMembers, lambda q: replace(q, cards=q.cards[:2]), "2 clients can open the sum; at least 3"),
        (Delivery, lambda q: replace(q, letters=dict([*q.letters.items()][:2])), "3 clients sent letters; 6 are"),
        (Members, lambda q: replace(q, names=q.names[1:]), "excludes this client, although it sent"),
        (Members, lambda q: replace(q, names=q.names[:4]), "the sum has 4 members; 6 are needed"),
        (Members, lambda q: replace(q, names=(*q.names, q.names[0])), "a member twice"),
        (Members, lambda q: replace(q, session=a_session(1)), "another sum"),
        (Transcript, lambda q: replace(q, counts=dict(list(q.counts.items())[:-1])), "the members have changed"),
        (Transcript, lambda q: replace(q, secrets=q.secrets | {"client-03": bytes(32)}), "the seed does not belong"),
        (Transcript, lambda q: replace(q, counts=q.counts | {"client-03": Masked(bytes(8), b"")}), "has not signed"),
    ],
)  # fmt: skip
def test_a_server_that_says_other_things_to_a_client_is_refused_by_it(tmp_path, stage, change, reason):
    people = changed(People.of(tmp_path, EIGHT), stage, change)
    sums = people.summed(tmp_path)
    assert reason in people.errors.pop("client-00")
    assert people.errors == {}
    # The others go on; what client-00 sent before is in the sum.
    sent = stage in (Members, Transcript)
    assert ("client-00" in sums.members) is sent
    assert sums.counts.sum() == len(sums.members) == 7 + sent


def test_masks_of_clients_that_were_offered_different_models_do_not_cancel(tmp_path, monkeypatch):
    """Pasquini et al., CCS 2022: one client's update alone would be in the sum of models that others cannot train."""
    people = People.of(tmp_path, EIGHT)
    people.persons["client-00"].offer = bytes(32)
    assert "client-00" not in people.summed(tmp_path).members
    # A server that takes its numbers nevertheless gets noise, and shows clients what they refuse.
    monkeypatch.setattr(coordinated_sum, "is_signed", lambda key, signature, message: True)
    monkeypatch.setattr(coordinated_sum, "opened_counts", lambda *about: np.array([5, 3]))
    people = People.of(tmp_path / "again", EIGHT)
    people.persons["client-00"].offer = bytes(32)
    with pytest.raises(RefusedError, match="0 clients gave their shares"):
        people.summed(tmp_path / "again")
    assert len(people.errors) == 8
    assert people.errors["client-01"] == "'client-00' has not signed the counts"


def test_an_answer_is_given_once(tmp_path):
    people = People.of(tmp_path, EIGHT)
    people.summed(tmp_path)
    for person in people.persons.values():
        for question, _ in person.answers[1:]:
            with pytest.raises(RefusedError, match="answered already"):
                person.answer(question)


def test_a_client_that_counts_itself_twice_stops_the_sum(tmp_path):
    people = People.of(tmp_path, EIGHT)

    def twice(name, question, answer, blocks):
        if name == "client-00" and isinstance(answer, Masked):
            person = people.persons[name]
            counts = np.frombuffer(answer.counts, COUNTS) + np.array([1, 0], COUNTS)
            signed = person.key.sign(counts_part(person.state.binding, counts.tobytes()))
            return Masked(counts.tobytes(), signed), blocks
        return answer, blocks

    people.spoil = twice
    with pytest.raises(RefusedError, match="do not add up to 8 clients"):
        people.summed(tmp_path)


def test_masked_numbers_say_nothing_alone(tmp_path):
    """All zeros look as uniform as anything else, and the same client in another sum is masked anew."""
    people = People.of(tmp_path, [0] * 4, length=4000)
    for person in people.persons.values():
        person.update = np.zeros(4000)
    sent = []

    def kept(name, question, answer, blocks):
        if isinstance(answer, Masked):
            sent.append(np.frombuffer(blocks, "<u4"))
        return answer, blocks

    people.spoil = kept
    people.summed(tmp_path)
    people.summed(tmp_path, session=a_session(2))
    for row in sent:
        # The mean of 8,000 uniform numbers is within 5 standard deviations of the middle, and no number comes often.
        assert abs(row.mean() / 2**32 - 0.5) < 5 * 12**-0.5 / len(row) ** 0.5
        assert len(np.unique(row)) > len(row) - 5
    assert len(sent) == 8
    assert len({row.tobytes() for row in sent}) == 8


def test_halves_are_equal_and_follow_from_the_digest_alone():
    names = [f"client-{i}" for i in range(7)]
    drawn = [tuple(half_of(name, names, bytes([i])) for name in names) for i in range(20)]
    assert {sum(halves) for halves in drawn} == {3}
    assert len(set(drawn)) > 10
