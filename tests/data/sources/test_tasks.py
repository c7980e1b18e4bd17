import pytest
import torch

from refused_input import refused
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import ImageDataset, load_dataset
from shoal.data.sources.tasks import slant, thickness, with_stroke_property


def shape_image(inside, size=40):
    """An image (1, 1, size, size) of the region where ``inside``(u, v) is positive, with soft edges, centred."""
    v, u = torch.meshgrid(torch.arange(size).double(), torch.arange(size).double(), indexing="ij")
    middle = (size - 1) / 2
    return (255 * (inside(u - middle, v - middle) + 0.5).clamp(0, 1)).to(torch.uint8)[None, None]


def bar(width, lean=0.0, half=14.0):
    """A straight stroke from 14 pixels below the middle to 14 above, ``lean`` pixels to the right per pixel up."""
    across = (1 + lean * lean) ** 0.5
    return shape_image(lambda u, v: torch.minimum(width / 2 - (u + lean * v).abs() / across, half - v.abs()))


def ring(width, radius=11.0):
    return shape_image(lambda u, v: width / 2 - ((u * u + v * v).sqrt() - radius).abs())


def stroke_property(images, name):
    return with_stroke_property(images, f"class/{name}").has_property


def images(pixels, labels, classes):
    return ImageDataset("idx", pixels, 255, labels, len(labels), classes)


@pytest.mark.parametrize("stroke", [ring, bar, lambda width: bar(width, lean=0.6)], ids=["ring", "bar", "leaning"])
def test_thickness_is_the_width_of_a_stroke(stroke):
    widths = [2.0, 3.0, 4.0, 6.0]
    measured = thickness(torch.cat([stroke(width) for width in widths]))
    assert bool((measured.diff() > 0.5).all())
    if stroke is ring:  # without ends, so nothing but the width counts
        assert measured.tolist() == pytest.approx(widths, rel=0.1)
    else:  # the ends are edge too: w l / (w + l), with l = 28 up and down
        assert measured.tolist() == pytest.approx([w * 28 / (w + 28) for w in widths], rel=0.15)


def test_thickness_does_not_depend_on_brightness_or_place():
    image = ring(3.0)
    moved = image.roll((3, -4), (2, 3))
    assert thickness(moved).item() == pytest.approx(thickness(image).item(), rel=1e-6)
    assert thickness(image // 2).item() == pytest.approx(thickness(image).item(), rel=0.02)
    # At the border the outside counts as empty.
    corner = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    corner[0, 0, 0, 0] = 9
    assert thickness(corner).item() == pytest.approx(2 / (2 + 2**0.5))


def test_a_measure_of_slant_is_the_shear():
    leans = [-0.6, -0.2, 0.0, 0.3, 0.7]
    measured = slant(torch.cat([bar(3.0, lean) for lean in leans]))
    assert measured.tolist() == pytest.approx(leans, abs=0.06)


def test_a_sheared_digit_leans_as_much_more():
    # Every row moved by an integer of pixels shears the moments exactly.
    digits = load_dataset("digits").pixels[:200]
    wide = torch.zeros(200, 1, 8, 24, dtype=torch.uint8)
    wide[..., 8:16] = digits
    sheared = torch.stack([wide[:, :, row].roll(4 - row, 2) for row in range(8)], 2)
    assert torch.allclose(slant(sheared), slant(wide) + 1, atol=1e-9)
    assert torch.allclose(slant(wide), slant(digits), atol=1e-9)


def test_images_without_ink_measure_0():
    empty = torch.zeros(2, 1, 5, 5, dtype=torch.uint8)
    empty[1, 0, 2] = 7  # one row: it has ink but no height
    assert thickness(empty)[0] == 0
    assert slant(empty).tolist() == [0, 0]
    assert stroke_property(images(empty, torch.tensor([0, 0]), 1), "thick").tolist() == [False, False]


@pytest.mark.parametrize("prop", ["thick", "slanted"])
def test_the_same_share_of_every_class_has_a_property(prop):
    digits = load_dataset("digits")
    has_property = stroke_property(digits, prop)
    values = (thickness if prop == "thick" else slant)(digits.pixels)
    for label in range(10):
        members = digits.labels == label
        assert abs(int(has_property[members].sum()) - 0.2 * int(members.sum())) <= 0.5
        assert float(values[members & has_property].min()) >= float(values[members & ~has_property].max())


def test_of_equal_images_the_earlier_ones_have_a_property():
    same = ring(3.0).repeat(10, 1, 1, 1)
    assert stroke_property(images(same, torch.zeros(10).long(), 1), "thick").tolist() == [True] * 2 + [False] * 8


def test_a_measure_depends_on_one_image_only():
    """However many are measured, and in which order."""
    pixels = torch.randint(0, 256, (1100, 1, 9, 7), generator=Stream(0).generator(), dtype=torch.uint8)
    for values in (thickness, slant):
        one_by_one = torch.cat([values(pixels[i : i + 1]) for i in range(0, 1100, 50)])
        assert torch.equal(values(pixels)[::50], one_by_one)
        assert torch.equal(values(pixels.flip(0)).flip(0), values(pixels))


def test_a_task_keeps_the_images_and_labels():
    plain, tasked = load_dataset("digits"), load_dataset("digits", task="class/slanted")
    assert torch.equal(plain.pixels, tasked.pixels)
    assert torch.equal(plain.labels, tasked.labels)
    assert tasked.has_property is not None
    assert int(tasked.has_property.sum()) == pytest.approx(0.2 * 1797, abs=5)
    assert plain.has_property is None
    assert load_dataset("digits", task="class").has_property is None
    assert with_stroke_property(plain, None) is plain


@pytest.mark.parametrize(
    ("task", "phrases"),
    [
        ("class/thik", ["'thik'", "did you mean 'thick'?"]),
        ("digit/thick", ["'task'", "'digit'", "'digits'", "known: class"]),
        ("class/hat", ["known: slanted, thick"]),
    ],
)
def test_a_task_that_grey_images_lack_is_one_sentence(task, phrases):
    sentence = refused(load_dataset, "digits", task=task)
    assert all(word in sentence for word in phrases), sentence


def test_colour_images_are_not_measured():
    colour = images(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2).long(), 1)
    with pytest.raises(InputError, match="3 channels"):
        stroke_property(colour, "thick")
    with pytest.raises(InputError, match=r"'wide'\)"):
        stroke_property(colour, "wide")
