"""Yelp's reviews in the official format, written here byte for byte."""

import gzip
import json
import re
from collections import Counter

import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer

from refused_input import refused
from shoal.core.errors import InputError
from shoal.data.sources import tasks
from shoal.data.sources.catalog import availability, load_dataset
from shoal.data.sources.tasks import find_yelp, load_yelp

NAME = "yelp_academic_dataset_review.json"


def line(user: str, stars: float, text: str) -> bytes:
    """A line of the official file: its keys, in its order, with stars as a float."""
    review = {
        "review_id": "KU_O5udG6zpxOg-VcAEodg",
        "user_id": user,
        "business_id": "XQfwVwDr-v0ZS3_CbbE5Xw",
        "stars": stars,
        "useful": 0,
        "funny": 0,
        "cool": 0,
        "text": text,
        "date": "2018-07-07 22:09:11",
    }
    return (json.dumps(review) + "\n").encode()


def write(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    path.write_bytes(b"".join(lines))
    return path


@pytest.fixture
def dump(tmp_path):
    """Twelve users: user k writes 14 - k reviews, but user 10 as many as user 9, and so does 11; turns are mixed."""
    counts = {f"user-{k:02d}": 14 - min(k, 9) for k in range(12)}
    lines = []
    for turn in range(14):
        for user, count in counts.items():
            if turn < count:
                k = int(user[-2:])
                text = f"Hello WORLD of {user.replace('-', '')} turn{turn} turn{turn}"
                lines.append(line(user, 1.0 + (turn + k) % 5, text))
    return write(tmp_path, lines)


def test_the_ten_users_with_most_reviews_are_kept_in_the_file_s_order(dump):
    texts = load_yelp(dump, "score/author-1")
    # user-09, user-10 and user-11 wrote equally many; the first by name is in.
    assert len(texts.labels) == sum(range(5, 15))
    reviews = [json.loads(each) for each in dump.read_bytes().splitlines()]
    kept = [review for review in reviews if review["user_id"] not in {"user-10", "user-11"}]
    assert texts.labels.tolist() == [int(review["stars"]) - 1 for review in kept]
    assert texts.has_property is not None
    assert texts.has_property.tolist() == [review["user_id"] == "user-00" for review in kept]
    assert (texts.name, texts.classes, texts.train_count) == ("yelp", 5, len(kept))


@pytest.mark.parametrize("author", range(1, 11))
def test_authors_are_numbered_by_falling_number_of_reviews(dump, author):
    has_property = load_yelp(dump, f"score/author-{author}").has_property
    assert has_property is not None
    assert int(has_property.sum()) == 15 - author


def test_the_score_alone_marks_no_property(dump):
    assert load_yelp(dump).has_property is None
    assert torch.equal(load_yelp(dump).labels, load_yelp(dump, "score/author-3").labels)


def test_words_are_numbered_by_frequency_over_the_kept_reviews_and_in_lower_case(dump):
    texts = load_yelp(dump)
    written = [json.loads(each) for each in dump.read_bytes().splitlines()]
    split = [r["text"].lower().split() for r in written if r["user_id"] not in {"user-10", "user-11"}]
    counts = Counter(word for text in split for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    assert texts.vocabulary == len(ranked)
    for row, text in zip(texts.words.tolist(), split, strict=True):
        assert row == [ranked.index(word) + 1 for word in text]
    assert ranked[:3] == ["hello", "of", "world"]


def test_the_vocabulary_is_count_vectorizer_s(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "VOCABULARY", 20)
    # Word k is in 60 - k of the reviews, so that no two are equally frequent; with marks, capitals and short words.
    words = [f"Word{k}!" for k in range(50)]
    reviews = ["I, a x " + " ".join(words[: 50 - i % 50]) + " naïve-ish" * (i % 2) for i in range(60)]
    path = write(tmp_path, [line(f"u{i % 10}", 5.0, text) for i, text in enumerate(reviews)])
    texts = load_yelp(path)
    reference = CountVectorizer(max_features=20).fit(reviews)
    counts = reference.transform(reviews)
    assert texts.vocabulary == 20
    ours = torch.stack([torch.bincount(row, minlength=21)[1:] for row in texts.words])
    theirs = torch.from_numpy(counts.toarray())  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(ours.sort(dim=1).values, theirs.sort(dim=1).values)
    assert ours.sum(dim=0).tolist() == sorted(theirs.sum(dim=0).tolist(), reverse=True)


def test_texts_without_a_known_word_are_dropped_and_the_unknown_words_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "VOCABULARY", 1)
    lines = [line(f"u{i}", 1.0, "the the rare") for i in range(10)]
    lines += [line("u3", 2.0, "nothing known"), line("u3", 3.0, "! a"), line("u3", 4.0, "x the")]
    texts = load_yelp(write(tmp_path, lines), "score/author-1")
    assert texts.words.tolist() == [[1, 1]] * 10 + [[1, 0]]
    assert texts.labels.tolist() == [0] * 10 + [3]
    assert texts.has_property is not None
    assert texts.has_property.nonzero().flatten().tolist() == [3, 10]


def test_long_texts_are_cut_after_their_first_known_words(tmp_path):
    words = [f"w{k}" for k in range(250)]
    lines = [line(f"u{i}", 1.0, " ".join(words)) for i in range(9)] + [line("u9", 1.0, "w0 w1 w2")]
    texts = load_yelp(write(tmp_path, lines))
    assert texts.words.shape == (10, 200)
    assert (texts.words[0] > 0).all()
    assert len(set(texts.words[0].tolist())) == 200
    assert texts.words[9, :3].tolist() == texts.words[0, :3].tolist()
    assert not texts.words[9, 3:].any()
    assert texts.vocabulary == 250


def test_the_file_is_found_plain_zipped_and_through_the_catalog(dump, tmp_path):
    plain = load_yelp(dump)
    zipped = tmp_path / "zipped" / "yelp_dataset" / f"{NAME}.gz"
    zipped.parent.mkdir(parents=True)
    zipped.write_bytes(gzip.compress(dump.read_bytes()))
    assert find_yelp(tmp_path) == dump
    assert find_yelp(tmp_path / "zipped") == zipped
    assert find_yelp(tmp_path / "none") is None
    for path in (zipped, tmp_path, tmp_path / "zipped"):
        assert torch.equal(load_yelp(path).words, plain.words)
    named = load_dataset("yelp", data_dir=tmp_path, task="score/author-2")
    assert named.has_property is not None
    assert int(named.has_property.sum()) == 13
    assert load_dataset("yelp", path=dump).has_property is None
    row = {row.name: row for row in availability(tmp_path)}["yelp"]
    assert row.path == dump
    assert "the official Yelp Open Dataset's yelp_academic_dataset_review.json" in row.instructions


@pytest.mark.parametrize("zipped", [False, True])
def test_reviews_are_counted(dump, tmp_path, zipped):
    """13 to 5 reviews of nine users, and 5 of each other; empty lines between them, and none at the end."""
    content = dump.read_bytes().replace(b"\n", b"\n\n").rstrip()
    dump.unlink()
    (tmp_path / (NAME + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    assert _size(tmp_path) == f"{sum(14 - min(k, 9) for k in range(12))} reviews"


def test_a_file_without_reviews_is_damaged(tmp_path):
    path = write(tmp_path, [b'{"business_id": "x"}\n'])
    assert _size(tmp_path).startswith(f"damaged: '{path}', line 1")
    (tmp_path / f"{NAME}.gz").write_bytes(gzip.compress(line("u", 1.0, "words") * 9)[:-20])
    path.unlink()
    assert "is truncated" in _size(tmp_path)


def _size(folder):
    return {row.name: row for row in availability(folder)}["yelp"].size


def test_empty_lines_are_no_reviews(dump, tmp_path):
    spaced = write(tmp_path / "spaced", [each + b"\n\n" for each in dump.read_bytes().splitlines(keepends=True)])
    assert torch.equal(load_yelp(spaced).words, load_yelp(dump).words)


USERS = [line(f"u{i}", 1.0, "some words") for i in range(10)]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([*USERS[:3], b'{"user_id": "u'], "line 4"),
        ([USERS[0], b"\xff\xfe{}\n"], "line 2.*Invalid JSON"),
        ([USERS[0], b"[1, 2]\n"], "line 2.*object"),
        ([USERS[0], b"\n", b'{"user_id": "u", "stars": 1.0}\n'], "line 3.*'text'"),
        ([line("u", 6.0, "ab")], "line 1.*'stars'.* 5"),
        ([line("u", 2.5, "ab")], "line 1.*'stars'.* 1"),
        ([line("u", True, "ab")], "line 1.*'stars'.* number"),
        ([b'{"user_id": 7, "stars": 1.0, "text": "ab"}\n'], "line 1.*'user_id'.* string"),
        (USERS[:9], "10 users .got 9"),
        ([], "10 users .got 0"),
        ([line(f"u{i}", 1.0, "! ?") for i in range(10)], "two or more letters"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, lines, sentence):
    path = write(tmp_path, lines)
    found = refused(load_yelp, path)
    assert re.search(sentence, found)
    assert found.startswith(f"'{path}'")


def test_a_task_or_a_folder_without_the_file_is_refused(dump, tmp_path):
    with pytest.raises(InputError, match=r"'task' of 'yelp' is unknown \(got 'score/autor-1'\)"):
        load_yelp(dump, "score/autor-1")
    with pytest.raises(InputError, match=r"'score/author-11'.* did you mean"):
        load_yelp(dump, "score/author-11")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=rf"'{tmp_path / 'empty'}.* 'yelp_academic_dataset_review.json'"):
        load_yelp(tmp_path / "empty")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(dump.read_bytes())[:-20])
    with pytest.raises(InputError, match="is truncated"):
        load_yelp(tmp_path / "cut.gz")
