"""Synthetic faces with known, independent attributes, as a source: `synthetic_faces:generate_faces`.

They are simple drawings. What they share with photographs is that one image shows several attributes at once, so that a
model trained for one of them also sees the others.
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from face_renderer import HEIGHT, WIDTH, FaceParameters, render_faces
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.datasets import ImageDataset
from shoal.data.sources.tasks import read_task

COUNT = 6000
_TONES = np.array([[236, 196, 168], [192, 142, 106], [112, 74, 52]], float)
_HAIR = np.array([[28, 22, 20], [86, 54, 34], [206, 170, 104], [146, 62, 30], [158, 156, 152]], float)
_EYES = np.array([[60, 38, 24], [62, 98, 132], [72, 102, 62], [30, 24, 22]], float)

# The main labels are attributes; a property is a class of an attribute.
_MAIN = ("smiling", "tone", "long-hair", "hat", "background")
_PROPERTIES = {
    "sunglasses": ("sunglasses", 1),
    "hat": ("hat", 1),
    "dark-tone": ("tone", 2),
    "smiling": ("smiling", 1),
    "bright-background": ("background", 1),
}
_CHOICES = {main: [name for name, (attribute, _) in _PROPERTIES.items() if attribute != main] for main in _MAIN}


def generate_faces(_path: Path | None, task: str | None) -> ImageDataset:
    """6,000 faces of 62x47 pixels in colour, without a split; the same ones whatever a run's seed.

    The attributes are independent: smiling (half), sunglasses (20 %), hat (20 %), tone (skin: 0 light, 1 medium,
    2 dark, a third each), long hair (half), background (1 bright, half). Everything else varies independently of them:
    position, size, rotation, shape of head, eyes, nose and mouth, hair and its colour, spectacles, light, noise.

    Args:
        _path: is ignored.
        task: ``"MAIN"`` or ``"MAIN/PROPERTY"``. Main labels are ``smiling``, ``tone`` (3 classes), ``long-hair``,
            ``hat``, ``background``; properties ``sunglasses``, ``hat``, ``dark-tone`` (tone 2), ``smiling``,
            ``bright-background``, of another attribute than the main label.

    Raises:
        InputError: no task, or one that the faces do not have.
    """
    main, name = read_task(task, "faces", _CHOICES)
    pixels, attributes = _faces()
    has_property = None
    if name is not None:
        attribute, value = _PROPERTIES[name]
        has_property = attributes[attribute] == value
    classes = 3 if main == "tone" else 2
    return ImageDataset("faces", pixels, 255, attributes[main].clone(), COUNT, classes, has_property)


@cache
def _faces() -> tuple[Tensor, dict[str, Tensor]]:
    """The images and their attributes, rendered once per process."""
    rng = Stream(0, ("faces",)).numpy()
    attributes = {
        "smiling": rng.random(COUNT) < 0.5,
        "sunglasses": rng.random(COUNT) < 0.2,
        "hat": rng.random(COUNT) < 0.2,
        "tone": rng.integers(0, 3, COUNT),
        "long-hair": rng.random(COUNT) < 0.5,
        "background": rng.random(COUNT) < 0.5,
    }
    pixels = render_faces(_parameters(attributes, rng))
    return torch.from_numpy(pixels), {name: torch.from_numpy(a).long() for name, a in attributes.items()}


def _parameters(attributes: dict[str, np.ndarray], rng: np.random.Generator) -> FaceParameters:
    """Parameters of `render_faces` that show the attributes; everything else is random.

    The order of the entries is the order of the random numbers: another order makes other faces.
    """

    def between(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, COUNT)

    def colour(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, (COUNT, 3))

    def one_of(colours: np.ndarray, spread: float) -> np.ndarray:
        return colours[rng.integers(0, len(colours), COUNT)] * rng.uniform(1 - spread, 1 + spread, (COUNT, 1))

    smiling, sunglasses, tones = attributes["smiling"], attributes["sunglasses"], _TONES[attributes["tone"]]
    spectacles = ~sunglasses & (rng.random(COUNT) < 0.25)
    brightness = np.where(attributes["background"], 205.0, 60.0)[:, None]
    return {
        "size": between(20.0, 24.0),
        "x": between(-0.1, 0.1),
        "y": between(-0.02, 0.14),
        "rotation": between(-0.1, 0.1),
        "edge-width": between(1.0, 2.6),
        "face-width": between(0.66, 0.8),
        "chin": between(0.94, 1.12),
        "skin": np.clip(tones * between(0.86, 1.08)[:, None] + colour(-9, 9), 0, 255),
        "hair-colour": one_of(_HAIR, 0.25),
        "hair-volume": between(0.02, 0.16),
        "hairline": between(-0.72, -0.42),
        "parting": between(-0.35, 0.35),
        "long-hair": attributes["long-hair"].astype(float),
        "hair-length": between(0.85, 1.3),
        "eye-distance": between(0.27, 0.36),
        "eye-height": between(-0.2, -0.08),
        "eye-opening": between(0.05, 0.1),
        "gaze": between(-0.05, 0.05),
        "eye-colour": one_of(_EYES, 0.2),
        "eye-white": between(205, 245)[:, None] + colour(-8, 4),
        "brow-distance": between(0.17, 0.26),
        "brow-height": between(0.03, 0.06),
        "nose": between(0.1, 0.19),
        "mouth-width": between(0.3, 0.42),
        "mouth-height": between(0.47, 0.55),
        "mouth-rise": np.where(smiling, between(0.13, 0.3), between(-0.12, 0.03)),
        "lip-height": np.where(smiling, between(0.08, 0.14), between(0.05, 0.1)),
        "teeth": rng.random(COUNT) < np.where(smiling, 0.8, 0.15),
        "lip-colour": np.clip(tones * [0.82, 0.52, 0.55] + colour(-18, 18), 0, 255),
        "lens": between(0.21, 0.3),
        "glasses": np.where(sunglasses, between(0.82, 0.98), np.where(spectacles, between(0.15, 0.4), 0.0)),
        "glasses-colour": np.where(
            sunglasses[:, None], colour(5, 60), np.where(rng.random((COUNT, 1)) < 0.5, 30.0, 235.0)
        ),
        "hat": attributes["hat"].astype(float),
        "hat-colour": colour(15, 235),
        "brim": between(-0.62, -0.45),
        "brim-shift": between(-0.2, 0.2),
        "shirt": colour(15, 235),
        "background": np.clip(brightness + colour(-38, 38), 0, 255),
        "blob": np.clip(brightness + colour(-70, 70), 0, 255),
        "blob-u": between(-1.3, 1.3),
        "blob-v": between(-1.5, 1.5),
        "blob-size": between(0.4, 1.0),
        "light": between(0.78, 1.1),
        "light-u": between(-0.16, 0.16),
        "light-v": between(-0.12, 0.12),
        "noise": rng.standard_normal(3 * HEIGHT * WIDTH + 300_000, dtype=np.float32),  # each face takes a part of it
        "noise-start": rng.integers(0, 300_000, COUNT),
        "noise-scale": between(3, 11),
    }
