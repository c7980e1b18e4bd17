from itertools import combinations

import pytest
import torch

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import load_dataset
from shoal.data.sources.synthetic_faces import generate_faces

MAIN = {"smiling": 2, "tone": 3, "long-hair": 2, "hat": 2, "background": 2}
OF = {"sunglasses": None, "hat": "hat", "dark-tone": "tone", "smiling": "smiling", "bright-background": "background"}


def labels_of(main):
    return generate_faces(main).labels


def property_of(prop):
    main = next(name for name in MAIN if name != OF[prop])
    has_property = generate_faces(f"{main}/{prop}").has_property
    assert has_property is not None
    return has_property


def correlation(a, b):
    return float(torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1])


def test_the_set_is_what_it_says():
    faces = generate_faces("smiling/sunglasses")
    assert faces.pixels.shape == (6000, 3, 62, 47)
    assert faces.pixels.dtype == torch.uint8
    assert (faces.name, faces.white, faces.train_count, faces.classes) == ("faces", 255, 6000, 2)
    assert faces.labels.dtype == torch.int64
    assert faces.has_property is not None
    assert faces.has_property.shape == (6000,)
    assert faces.has_property.dtype == torch.bool
    assert generate_faces("smiling").has_property is None


def test_every_pair_of_different_attributes_is_a_task_and_no_pair_of_one_is():
    for main, classes in MAIN.items():
        for prop, attribute in OF.items():
            task = f"{main}/{prop}"
            if attribute == main:
                with pytest.raises(InputError, match="of the same attribute"):
                    generate_faces(task)
            else:
                faces = generate_faces(task)
                assert faces.classes == classes == int(faces.labels.max()) + 1
                assert torch.equal(faces.labels, labels_of(main))
    assert torch.equal(property_of("dark-tone"), labels_of("tone") == 2)
    assert torch.equal(property_of("hat"), labels_of("hat") == 1)


def test_attributes_have_their_shares_and_are_independent():
    # A share of 6,000 draws is within 0.013 of its probability in 95 of 100 cases, a correlation within 0.026.
    shares = {prop: float(property_of(prop).double().mean()) for prop in OF}
    wanted = {"sunglasses": 0.2, "hat": 0.2, "dark-tone": 1 / 3, "smiling": 0.5, "bright-background": 0.5}
    assert shares == pytest.approx(wanted, abs=0.02)
    assert float(labels_of("long-hair").double().mean()) == pytest.approx(0.5, abs=0.02)
    attributes = {"long-hair": labels_of("long-hair"), **{prop: property_of(prop) for prop in OF}}
    for a, b in combinations(attributes, 2):
        assert abs(correlation(attributes[a], attributes[b])) < 0.04, (a, b)


def region(faces, rows, columns):
    """Mean brightness of each face there."""
    return faces.pixels[:, :, rows, columns].double().mean((1, 2, 3))


def test_attributes_can_be_seen_where_they_are():
    faces = generate_faces("tone/sunglasses")
    assert faces.has_property is not None
    eyes = region(faces, slice(26, 34), slice(13, 34))
    assert float(eyes[faces.has_property].mean()) < 0.75 * float(eyes[~faces.has_property].mean())
    cheeks = region(faces, slice(38, 42), slice(15, 32))
    light, medium, dark = (float(cheeks[faces.labels == tone].mean()) for tone in range(3))
    assert light > 1.15 * medium > 1.3 * dark
    corners = region(faces, slice(0, 8), slice(0, 6))
    bright = labels_of("background") == 1
    assert float(corners[bright].mean()) > 1.5 * float(corners[~bright].mean())


@pytest.mark.parametrize(
    ("prop", "rows", "columns"),
    [("sunglasses", (22, 36), (8, 39)), ("hat", (0, 26), (6, 41)), ("smiling", (36, 58), (10, 37))],
)
def test_a_property_shows_where_it_is(prop, rows, columns):
    """The mean face with it differs from the mean face without it most in the part of the face where it is."""
    has_property, pixels = property_of(prop)[:2000], generate_faces("smiling").pixels[:2000].float()
    difference = (pixels[has_property].mean(0) - pixels[~has_property].mean(0)).abs().mean(0)
    inside = torch.zeros_like(difference, dtype=torch.bool)
    inside[slice(*rows), slice(*columns)] = True
    assert bool(inside.flatten()[int(difference.argmax())])
    assert float(difference.max()) > 3 * float(difference[~inside].mean())
    assert float(difference[inside].mean()) > 1.5 * float(difference[~inside].mean())


def test_no_two_faces_are_the_same_and_none_is_flat():
    pixels = generate_faces("smiling").pixels.flatten(1)
    assert len({face.tobytes() for face in pixels.numpy()}) == 6000
    assert float(pixels.float().std(1).min()) > 10


def test_faces_are_the_same_in_every_task_and_whatever_other_random_numbers():
    before = generate_faces("smiling").pixels.clone()
    Stream(5)("something").numpy().random(10)
    torch.manual_seed(1)
    again = load_dataset("faces", task="tone/hat")
    assert torch.equal(before, again.pixels)


@pytest.mark.parametrize(
    ("task", "phrases"),
    [
        (None, ["needs a 'task'", "'smiling/sunglasses'", "'long-hair'"]),
        ("smilling/hat", ["'task'", "main label 'smilling'", "did you mean 'smiling'?"]),
        ("tone/sunglases", ["'task'", "property 'sunglases'", "did you mean 'sunglasses'?"]),
        ("tone/dark-tone", ["'task'", "same attribute", "'sunglasses', 'hat', 'smiling', 'bright-background'"]),
        ("smiling/long-hair", ["property 'long-hair'"]),
        ("smiling/", ["property ''"]),
        ("/hat", ["main label ''"]),
        ("smiling/hat/tone", ["property 'hat/tone'"]),
    ],
)
def test_a_task_the_faces_lack_is_one_sentence(task, phrases):
    with pytest.raises(InputError) as caught:
        generate_faces(task)
    assert "\n" not in str(caught.value)
    for word in phrases:
        assert word in str(caught.value)
