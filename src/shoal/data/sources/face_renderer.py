"""How the faces of `synthetic_faces` are drawn: layers of soft-edged shapes, many pictures at a time.

A face has coordinates of its own, u to the right and v down, in half heads: its chin is near v = 1, its temples are
near u = 0.75. A curve is where a quadratic form in u and v is 0, so one curve of n pictures is a product of (n, 6)
coefficients with the six monomials of the pixels, place, size and rotation included. A layer is a union of
intersections of such insides. Its weight in a pixel is its own cover times what the layers in front of it let through,
and a picture is the weights times the layers' colours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

HEIGHT, WIDTH = 62, 47
_CHUNK = 16  # pictures drawn at a time, so that their layers stay in the processor's cache
_UNIT = 20.0  # pixels
_ALL, _TOP, _EYES, _MOUTH, _LOW = slice(0, 62), slice(0, 36), slice(14, 46), slice(30, 60), slice(38, 62)  # rows

_y, _x = np.divmod(np.arange(HEIGHT * WIDTH, dtype=np.float32), np.float32(WIDTH))
_x, _y = (_x - (WIDTH - 1) / 2) / _UNIT, (_y - (HEIGHT - 1) / 2) / _UNIT
_MONOMIALS = np.stack([np.ones_like(_x), _x, _y, _x * _x, _x * _y, _y * _y]).astype(np.float32)

Number = np.ndarray | float
Looks = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Layer:
    """What is painted in one colour.

    Attributes:
        rows: the rows of the picture it can reach.
        shapes: the union of these, each the intersection of its curves' insides, (M, 6) each.
        colour: (M, 3), 0 to 255.
        shown: (M, 1) or one number, how much of what is behind it hides, 0 to 1.
    """

    rows: slice
    shapes: list[list[np.ndarray]]
    colour: np.ndarray
    shown: Number = 1.0

    def cover(self, part: slice, clear: np.ndarray) -> np.ndarray:
        """How much of what still shines through, ``clear``, this layer takes, (n, pixels of its rows)."""
        monomials = _MONOMIALS[:, _pixels(self.rows)]
        union = None
        for curves in self.shapes:
            shape = curves[0][part] @ monomials
            for curve in curves[1:]:
                np.minimum(shape, curve[part] @ monomials, out=shape)
            union = shape if union is None else np.maximum(union, shape, out=union)
        assert union is not None
        np.clip(union, 0, 1, out=union)
        union *= clear
        if isinstance(self.shown, np.ndarray):
            union *= self.shown[part]
        elif self.shown < 1:
            union *= np.float32(self.shown)
        return union


def draw_portraits(looks: Looks) -> np.ndarray:
    """The pictures (M, 3, 62, 47) uint8 of M faces.

    Args:
        looks: what each face looks like, by the names that `synthetic_faces` draws: (M,) numbers, yes or no as 1 or 0,
            (M, 3) colours from 0 to 255, and a ``strip`` of noise with the place where each face begins in it.
    """
    count, size = len(looks["size"]), HEIGHT * WIDTH
    layers = _layers(_Pencil.of(looks), looks)
    colours = np.stack([layer.colour for layer in layers] + [looks["background"]], axis=2).astype(np.float32)
    light = np.stack([looks["light"], looks["light-u"], looks["light-v"]], axis=1).astype(np.float32)
    noise = np.lib.stride_tricks.sliding_window_view(looks["strip"], 3 * size)
    grain = looks["grain"].astype(np.float32)[:, None]
    weights = np.zeros((_CHUNK, len(layers) + 1, size), np.float32)
    pictures = np.empty((count, 3 * size), np.uint8)
    for start in range(0, count, _CHUNK):
        part = slice(start, min(start + _CHUNK, count))
        weight = weights[: part.stop - start]
        clear = weight[:, -1]
        clear[:] = 1
        for k, layer in enumerate(layers):
            here = _pixels(layer.rows)
            weight[:, k, here] = cover = layer.cover(part, clear[:, here])
            clear[:, here] -= cover
        picture = np.matmul(colours[part], weight)
        picture *= (light[part] @ _MONOMIALS[:3])[:, None]
        picture = picture.reshape(-1, 3 * size)
        picture += noise[looks["cut"][part]] * grain[part]
        pictures[part] = np.clip(picture, 0, 255, out=picture)
    return pictures.reshape(count, 3, HEIGHT, WIDTH)


def _pixels(rows: slice) -> slice:
    return slice(rows.start * WIDTH, rows.stop * WIDTH)


@dataclass(frozen=True)
class _Pencil:
    """Draws curves on M pictures: ``pose`` (M, 6, 6) takes forms in u and v to forms in pixels, ``sharp`` is (M,)."""

    pose: np.ndarray
    sharp: np.ndarray

    @staticmethod
    def of(looks: Looks) -> "_Pencil":
        """The pencil for faces of these sizes, places and rotations."""
        scale, turn = _UNIT / looks["size"], looks["turn"]
        cos, sin = scale * np.cos(turn), scale * np.sin(turn)
        u = np.stack([-(cos * looks["x"] + sin * looks["y"]), cos, sin], 1)  # of 1, x, y
        v = np.stack([sin * looks["x"] - cos * looks["y"], -sin, cos], 1)
        pose = np.zeros((len(u), 6, 6))
        pose[:, 0, 0], pose[:, 1, :3], pose[:, 2, :3] = 1, u, v
        for row, (p, q) in zip((3, 4, 5), ((u, u), (u, v), (v, v)), strict=True):
            product = p[:, :, None] * q[:, None, :]
            product += np.tril(product, -1).transpose(0, 2, 1)
            pose[:, row] = product[:, *np.triu_indices(3)]
        return _Pencil(pose, looks["size"] / looks["edge"])

    def curve(self, *terms: Number) -> np.ndarray:
        """Forms with these coefficients of 1, u, v, uu, uv, vv, on pixels; the edge, half covered, is where they are 0.

        Half an edge's width inside, where the form is 0.5 / ``sharp``, the cover is full.
        """
        given = np.stack([np.broadcast_to(term, self.sharp.shape) for term in terms], axis=1)
        pixels = np.einsum("ni,nij->nj", given * self.sharp[:, None], self.pose)
        pixels[:, 0] += 0.5
        return pixels.astype(np.float32)

    def ellipse(self, u: Number, v: Number, a: Number, b: Number, soft: float = 1.0) -> np.ndarray:
        """The ellipse round (u, v) with radii a and b; its edge is ``soft`` times as wide as usual."""
        half = np.sqrt(a * b) / (2 * soft)
        p, q = half / (a * a), half / (b * b)
        return self.curve(half - p * u * u - q * v * v, 2 * p * u, 2 * q * v, -p, 0.0, -q)

    def pair(self, u: Number, v: Number, a: Number, b: Number, aside: Number = 0.0) -> list[list[np.ndarray]]:
        """Two such ellipses, left and right of the middle, both shifted ``aside``."""
        return [[self.ellipse(side * u + aside, v, a, b)] for side in (-1, 1)]

    def above(self, v: Number, slope: Number = 0.0, bend: Number = 0.0, lean: Number = 0.0) -> np.ndarray:
        """What is above the curve v = v + slope u + bend u u + lean u v."""
        return self.curve(v, slope, -1.0, bend, lean, 0.0)


def _layers(pencil: _Pencil, looks: Looks) -> list[_Layer]:
    """The layers from the front to the back; behind them is the background."""
    skin, hair, wide = looks["skin"], looks["hair-colour"], looks["wide"]
    full = wide + looks["volume"]
    head = pencil.ellipse(0.0, looks["long"] * 0.05 - 0.12, full, 0.98 + looks["volume"])
    face = pencil.ellipse(0.0, 0.0, wide, looks["chin"])
    locks = pencil.ellipse(0.0, 0.5, full + 0.12, looks["length"])
    fringe = pencil.above(looks["hairline"], 0.2 * looks["parting"], 0.35, looks["parting"])
    behind = [
        _Layer(_TOP, [[head, fringe]], hair),
        _Layer(_ALL, [[pencil.ellipse(0.1, -0.05, 0.6 * wide, 0.7, soft=5)]], np.minimum(1.1 * skin, 255), 0.7),
        _Layer(_ALL, [[face]], skin),
        _Layer(_EYES, [[pencil.ellipse(0.0, 0.05, wide + 0.1, 0.17)]], 0.85 * skin, _shown(1 - looks["long"])),
        _Layer(_TOP, [[head]], 0.9 * hair),
        _Layer(_LOW, [[pencil.ellipse(0.0, 1.05, 0.36, 0.6)]], 0.78 * skin),
        _Layer(_ALL, [[locks]], 0.85 * hair, _shown(looks["long"])),
        _Layer(_LOW, [[pencil.ellipse(0.0, 2.0, 1.25, 0.72)]], looks["shirt"]),
        _Layer(_ALL, [[pencil.ellipse(looks["blob-u"], looks["blob-v"], looks["blob-size"], 0.7, 3)]], looks["blob"]),
    ]
    return _worn(pencil, looks) + _features(pencil, looks) + behind


def _worn(pencil: _Pencil, looks: Looks) -> list[_Layer]:
    """Hat and glasses."""
    wide, brim, eye, lens = looks["wide"], looks["brim"], looks["eye-height"], looks["lens"]
    crown = [pencil.ellipse(0.0, -0.7, wide + 0.12, 0.62), pencil.above(brim, bend=0.1)]
    rim = [pencil.ellipse(looks["peak"], brim, wide + 0.28, 0.11)]
    bar = [pencil.ellipse(0.0, eye - 0.03, wide, 0.06)]
    lenses = pencil.pair(looks["apart"], eye + 0.03, lens, 0.78 * lens)
    return [
        _Layer(_TOP, [crown, rim], looks["hat-colour"], _shown(looks["hat"])),
        _Layer(_EYES, [*lenses, bar], looks["glass-colour"], _shown(looks["glasses"])),
    ]


def _features(pencil: _Pencil, looks: Looks) -> list[_Layer]:
    """Brows, eyes, mouth and nose."""
    apart, eye, height, skin = looks["apart"], looks["eye-height"], looks["eye-open"], looks["skin"]
    half, rise, lip, nose = looks["mouth"], looks["rise"], looks["lip"], looks["nose"]
    brows = pencil.pair(apart, eye - looks["brow"], 0.2, looks["brow-height"])
    irises = pencil.pair(apart, eye, 0.075, 0.9 * height, looks["gaze"])
    # Lips lie round a parabola whose ends are `rise` above its middle; its mean height stays.
    middle, bend = looks["mouth-height"] + 0.6 * rise, rise / (half * half)
    above, below, across = (
        lambda t: pencil.curve(t + middle, 0.0, -1.0, -bend, 0.0, 0.0),
        lambda t: pencil.curve(t - middle, 0.0, 1.0, bend, 0.0, 0.0),
        lambda w: pencil.curve(1.6 * w * w, 0.0, 0.0, -1.6, 0.0, 0.0),
    )
    teeth = [above(0.5 * lip), below(0.5 * lip), across(0.8 * half)]
    lips = [above(lip), below(lip), across(half)]
    return [
        _Layer(_EYES, brows, 0.7 * looks["hair-colour"], 0.8),
        _Layer(_EYES, irises, looks["eye-colour"]),
        _Layer(_EYES, pencil.pair(apart, eye, 0.16, height), looks["eye-white"]),
        _Layer(_MOUTH, [teeth], looks["eye-white"], _shown(looks["teeth"])),
        _Layer(_MOUTH, [lips], looks["lips"]),
        _Layer(_MOUTH, [[pencil.ellipse(0.0, 0.27, nose, 0.07)]], 0.62 * skin, 0.6),
        _Layer(_EYES, [[pencil.ellipse(0.02, 0.08, 0.4 * nose, 0.26)]], 0.75 * skin, 0.35),
    ]


def _shown(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)[:, None]
