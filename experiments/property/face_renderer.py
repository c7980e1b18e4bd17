"""Renderer of the faces of `synthetic_faces`: layers of soft-edged shapes, many images at a time.

A face has its own coordinates, u to the right and v down, in units of half a head: its chin is near v = 1, its temples
are near u = 0.75. A curve is the zero set of a quadratic form in u and v, so one curve on n images is the product of
(n, 6) coefficients and the six monomials of the pixel coordinates, with position, size and rotation included. A layer
is a union of intersections of the insides of such curves. Its weight in a pixel is its own coverage times the
transmittance of the layers in front of it, and an image is the sum of the layers' colours with these weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

HEIGHT, WIDTH = 62, 47
_CHUNK = 16  # images rendered at a time, so that their layers stay in the processor's cache
_UNIT = 20.0  # pixels
_ALL, _TOP, _EYES, _MOUTH, _LOW = slice(0, 62), slice(0, 36), slice(14, 46), slice(30, 60), slice(38, 62)  # rows

_y, _x = np.divmod(np.arange(HEIGHT * WIDTH, dtype=np.float32), np.float32(WIDTH))
_x, _y = (_x - (WIDTH - 1) / 2) / _UNIT, (_y - (HEIGHT - 1) / 2) / _UNIT
_MONOMIALS = np.stack([np.ones_like(_x), _x, _y, _x * _x, _x * _y, _y * _y]).astype(np.float32)

Number = np.ndarray | float
FaceParameters = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Layer:
    """A region of one colour."""

    rows: slice  # of the image, that it can reach
    shapes: list[list[np.ndarray]]  # the union of these, each the intersection of the insides of its curves, (M, 6)
    colour: np.ndarray  # (M, 3), 0 to 255
    opacity: Number = 1.0  # (M, 1) or one number, 0 to 1

    def coverage(self, part: slice, transmittance: np.ndarray) -> np.ndarray:
        """The layer's weight in each pixel of its rows, (n, pixels), behind layers of that ``transmittance``."""
        monomials = _MONOMIALS[:, _pixels(self.rows)]
        union = None
        for curves in self.shapes:
            shape = curves[0][part] @ monomials
            for curve in curves[1:]:
                np.minimum(shape, curve[part] @ monomials, out=shape)
            union = shape if union is None else np.maximum(union, shape, out=union)
        assert union is not None
        np.clip(union, 0, 1, out=union)
        union *= transmittance
        if isinstance(self.opacity, np.ndarray):
            union *= self.opacity[part]
        elif self.opacity < 1:
            union *= np.float32(self.opacity)
        return union


def render_faces(parameters: FaceParameters) -> np.ndarray:
    """The images (M, 3, 62, 47) uint8 of M faces.

    Their parameters have the names that `synthetic_faces` gives them: (M,) numbers, flags as 1 or 0, (M, 3) colours
    from 0 to 255, and one array ``noise`` with the index ``noise-start`` at which each face's begins.
    """
    count, size = len(parameters["size"]), HEIGHT * WIDTH
    layers = _layers(_Curves.from_parameters(parameters), parameters)
    colours = np.stack([layer.colour for layer in layers] + [parameters["background"]], axis=2).astype(np.float32)
    light = np.stack([parameters["light"], parameters["light-u"], parameters["light-v"]], axis=1).astype(np.float32)
    noise = np.lib.stride_tricks.sliding_window_view(parameters["noise"], 3 * size)
    noise_scale = parameters["noise-scale"].astype(np.float32)[:, None]
    weights = np.zeros((_CHUNK, len(layers) + 1, size), np.float32)
    images = np.empty((count, 3 * size), np.uint8)
    for start in range(0, count, _CHUNK):
        part = slice(start, min(start + _CHUNK, count))
        weight = weights[: part.stop - start]
        transmittance = weight[:, -1]
        transmittance[:] = 1
        for k, layer in enumerate(layers):
            pixels = _pixels(layer.rows)
            weight[:, k, pixels] = coverage = layer.coverage(part, transmittance[:, pixels])
            transmittance[:, pixels] -= coverage
        image = np.matmul(colours[part], weight)
        image *= (light[part] @ _MONOMIALS[:3])[:, None]
        image = image.reshape(-1, 3 * size)
        image += noise[parameters["noise-start"][part]] * noise_scale[part]
        images[part] = np.clip(image, 0, 255, out=image)
    return images.reshape(count, 3, HEIGHT, WIDTH)


def _pixels(rows: slice) -> slice:
    return slice(rows.start * WIDTH, rows.stop * WIDTH)


@dataclass(frozen=True)
class _Curves:
    """Curves in face coordinates as coefficients of the pixels' monomials."""

    to_pixels: np.ndarray  # (M, 6, 6), maps quadratic forms in u and v to forms in pixel coordinates
    sharpness: np.ndarray  # (M,), the inverse width of edges

    @staticmethod
    def from_parameters(parameters: FaceParameters) -> "_Curves":
        """Curves of faces with these sizes, positions and rotations."""
        scale, rotation = _UNIT / parameters["size"], parameters["rotation"]
        cos, sin = scale * np.cos(rotation), scale * np.sin(rotation)
        u = np.stack([-(cos * parameters["x"] + sin * parameters["y"]), cos, sin], 1)  # of 1, x, y
        v = np.stack([sin * parameters["x"] - cos * parameters["y"], -sin, cos], 1)
        to_pixels = np.zeros((len(u), 6, 6))
        to_pixels[:, 0, 0], to_pixels[:, 1, :3], to_pixels[:, 2, :3] = 1, u, v
        for row, (p, q) in zip((3, 4, 5), ((u, u), (u, v), (v, v)), strict=True):
            product = p[:, :, None] * q[:, None, :]
            product += np.tril(product, -1).transpose(0, 2, 1)
            to_pixels[:, row] = product[:, *np.triu_indices(3)]
        return _Curves(to_pixels, parameters["size"] / parameters["edge-width"])

    def curve(self, *coefficients: Number) -> np.ndarray:
        """The form with these coefficients of 1, u, v, uu, uv, vv, on pixels; where it is 0, coverage is one half.

        Half an edge's width inside, where the form is 0.5 / ``sharpness``, coverage is full.
        """
        form = np.stack([np.broadcast_to(coefficient, self.sharpness.shape) for coefficient in coefficients], axis=1)
        pixels = np.einsum("ni,nij->nj", form * self.sharpness[:, None], self.to_pixels)
        pixels[:, 0] += 0.5
        return pixels.astype(np.float32)

    def ellipse(self, u: Number, v: Number, a: Number, b: Number, softness: float = 1.0) -> np.ndarray:
        """The ellipse about (u, v) with radii a and b; its edge is ``softness`` times as wide as usual."""
        half = np.sqrt(a * b) / (2 * softness)
        p, q = half / (a * a), half / (b * b)
        return self.curve(half - p * u * u - q * v * v, 2 * p * u, 2 * q * v, -p, 0.0, -q)

    def pair(self, u: Number, v: Number, a: Number, b: Number, shift: Number = 0.0) -> list[list[np.ndarray]]:
        """Two such ellipses, left and right of the middle, both shifted by ``shift`` to the right."""
        return [[self.ellipse(side * u + shift, v, a, b)] for side in (-1, 1)]

    def above(self, v: Number, slope: Number = 0.0, bend: Number = 0.0, lean: Number = 0.0) -> np.ndarray:
        """The half plane above the curve v = v + slope u + bend u u + lean u v."""
        return self.curve(v, slope, -1.0, bend, lean, 0.0)


def _layers(curves: _Curves, parameters: FaceParameters) -> list[_Layer]:
    """The layers from front to back; behind them is the background."""
    skin, hair, width, long_hair = (parameters[name] for name in ("skin", "hair-colour", "face-width", "long-hair"))
    hair_width = width + parameters["hair-volume"]
    head = curves.ellipse(0.0, long_hair * 0.05 - 0.12, hair_width, 0.98 + parameters["hair-volume"])
    face = curves.ellipse(0.0, 0.0, width, parameters["chin"])
    long_strands = curves.ellipse(0.0, 0.5, hair_width + 0.12, parameters["hair-length"])
    fringe = curves.above(parameters["hairline"], 0.2 * parameters["parting"], 0.35, parameters["parting"])
    blob = curves.ellipse(parameters["blob-u"], parameters["blob-v"], parameters["blob-size"], 0.7, softness=3)
    head_and_body = [
        _Layer(_TOP, [[head, fringe]], hair),
        _Layer(_ALL, [[curves.ellipse(0.1, -0.05, 0.6 * width, 0.7, softness=5)]], np.minimum(1.1 * skin, 255), 0.7),
        _Layer(_ALL, [[face]], skin),
        _Layer(_EYES, [[curves.ellipse(0.0, 0.05, width + 0.1, 0.17)]], 0.85 * skin, _opacity(1 - long_hair)),
        _Layer(_TOP, [[head]], 0.9 * hair),
        _Layer(_LOW, [[curves.ellipse(0.0, 1.05, 0.36, 0.6)]], 0.78 * skin),
        _Layer(_ALL, [[long_strands]], 0.85 * hair, _opacity(long_hair)),
        _Layer(_LOW, [[curves.ellipse(0.0, 2.0, 1.25, 0.72)]], parameters["shirt"]),
        _Layer(_ALL, [[blob]], parameters["blob"]),
    ]
    return _accessories(curves, parameters) + _features(curves, parameters) + head_and_body


def _accessories(curves: _Curves, parameters: FaceParameters) -> list[_Layer]:
    """Hat and glasses."""
    width, brim, eye, lens = (parameters[name] for name in ("face-width", "brim", "eye-height", "lens"))
    crown = [curves.ellipse(0.0, -0.7, width + 0.12, 0.62), curves.above(brim, bend=0.1)]
    rim = [curves.ellipse(parameters["brim-shift"], brim, width + 0.28, 0.11)]
    bridge = [curves.ellipse(0.0, eye - 0.03, width, 0.06)]
    lenses = curves.pair(parameters["eye-distance"], eye + 0.03, lens, 0.78 * lens)
    return [
        _Layer(_TOP, [crown, rim], parameters["hat-colour"], _opacity(parameters["hat"])),
        _Layer(_EYES, [*lenses, bridge], parameters["glasses-colour"], _opacity(parameters["glasses"])),
    ]


def _features(curves: _Curves, parameters: FaceParameters) -> list[_Layer]:
    """Brows, eyes, mouth and nose."""
    distance, eye, opening = (parameters[name] for name in ("eye-distance", "eye-height", "eye-opening"))
    half, rise, lip, nose = (parameters[name] for name in ("mouth-width", "mouth-rise", "lip-height", "nose"))
    skin = parameters["skin"]
    brows = curves.pair(distance, eye - parameters["brow-distance"], 0.2, parameters["brow-height"])
    irises = curves.pair(distance, eye, 0.075, 0.9 * opening, parameters["gaze"])
    # Lips follow a parabola whose ends are `rise` above its middle; its mean height does not depend on that.
    middle, bend = parameters["mouth-height"] + 0.6 * rise, rise / (half * half)
    above, below, across = (
        lambda t: curves.curve(t + middle, 0.0, -1.0, -bend, 0.0, 0.0),
        lambda t: curves.curve(t - middle, 0.0, 1.0, bend, 0.0, 0.0),
        lambda w: curves.curve(1.6 * w * w, 0.0, 0.0, -1.6, 0.0, 0.0),
    )
    teeth = [above(0.5 * lip), below(0.5 * lip), across(0.8 * half)]
    lips = [above(lip), below(lip), across(half)]
    return [
        _Layer(_EYES, brows, 0.7 * parameters["hair-colour"], 0.8),
        _Layer(_EYES, irises, parameters["eye-colour"]),
        _Layer(_EYES, curves.pair(distance, eye, 0.16, opening), parameters["eye-white"]),
        _Layer(_MOUTH, [teeth], parameters["eye-white"], _opacity(parameters["teeth"])),
        _Layer(_MOUTH, [lips], parameters["lip-colour"]),
        _Layer(_MOUTH, [[curves.ellipse(0.0, 0.27, nose, 0.07)]], 0.62 * skin, 0.6),
        _Layer(_EYES, [[curves.ellipse(0.02, 0.08, 0.4 * nose, 0.26)]], 0.75 * skin, 0.35),
    ]


def _opacity(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32)[:, None]
