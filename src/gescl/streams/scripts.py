"""`scripts`, the built-in stream: writing systems of ten characters each, rendered from matplotlib's DejaVu fonts.

Nothing is downloaded. Each image is a character in a random font with seven random knobs (size, rotation, shift,
contrast, …). Every knob has a grid of levels; training images use the even levels and test images the odd ones, so a
test image never shares the value of any knob with a training image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps, features
from pydantic import Field

from ..errors import DataError
from ..randomness import derived_seed
from .files.cache import Tensors, cached
from .task import StreamOptions, Task, TaskSource, TaskStream

# Ten characters per task that a person can tell apart at 28×28 pixels in any of the fonts, rotated by up to 25°.
SCRIPTS = {
    "digits": "0123456789",
    "latin-capitals": "ABEGHKMRSX",
    "greek-capitals": "ΓΔΘΛΞΠΣΦΨΩ",
    "cyrillic-capitals": "БДЖЗИЛЦЭЮЯ",
    "latin-small": "abefghkmsy",
    "greek-small": "αβγδθλμξπψ",
    "cyrillic-small": "бджилфцэюя",
    "armenian": "ԲԳԸԺԽԾՃՄՋՖ",
    "georgian": "აბდეკლმტფჯ",
    "hebrew": "אבגזטלמעצש",
    "arrows": "↑↓↔↝↩↯↱↻⇄⇒",
    "mathematics": "√∞∫∑∂∈∃≠≈⊕",
}

FONTS = tuple(
    f"DejaVu{family}.ttf"
    for family in (
        "Sans", "Sans-Bold", "Sans-Oblique", "Sans-BoldOblique",
        "SansMono", "SansMono-Bold", "SansMono-Oblique", "SansMono-BoldOblique",
        "Serif", "Serif-Bold", "Serif-Italic", "Serif-BoldItalic",
    )
)  # fmt: skip

SIZE = 28  # pixels, height and width
VERSION = 1  # increase it with any change below that changes an image: old cache files are then ignored
LEVELS = 64  # per knob: 32 for training, 32 for test
MASTER = 96  # pixels per em: each character is drawn once per font at this size and then scaled down
BORDER = 2  # empty pixels around the character, so that its edges are smoothed too
SUPERSAMPLING = 2  # pixels averaged per side, against jagged edges


@dataclass(frozen=True)
class Knob:
    """A random parameter of an image, within a range."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator, count: int, parity: int) -> npt.NDArray[np.float64]:
        """Values at even levels (parity 0, training) or odd ones (parity 1, test)."""
        level = 2 * rng.integers(LEVELS // 2, size=count) + parity
        return self.low + (self.high - self.low) * level / (LEVELS - 1)


# Wide enough that a small network stays near 0.92 on a task, narrow enough that a person can read every class.
KNOBS = {
    "size": Knob(13, 21),  # pixels, the longer side of the character
    "angle": Knob(-25, 25),  # degrees, clockwise
    "right": Knob(-2.5, 2.5),  # pixels
    "down": Knob(-2.5, 2.5),
    "dark": Knob(0, 60),  # grey value of the darker of ink and paper
    "contrast": Knob(100, 190),  # between ink and paper; with less, it is luck whether a first task is learned at all
    "noise": Knob(0.1, 0.4),  # standard deviation, as a fraction of the contrast
}
PARITY = {"train": 0, "test": 1}


class ScriptsOptions(StreamOptions):
    """Options of the `scripts` stream."""

    train_per_class: int = Field(100, ge=2, description="training images per class, including validation")
    test_per_class: int = Field(50, ge=1, description="test images per class")
    data_seed: int = Field(0, ge=0, description="seed of the images; the run's seed only splits them")


def scripts_stream(options: ScriptsOptions, seed: int, data: Path | None = None) -> TaskStream:
    """One task per writing system; `seed` draws the validation split. `data` is not used: there are no files."""
    sources = [TaskSource(name, partial(_load, name, options, seed)) for name in SCRIPTS]
    return TaskStream("scripts", sources).first(options.tasks)


def _load(name: str, options: ScriptsOptions, seed: int) -> Task:
    counts = {"train": options.train_per_class, "test": options.test_per_class}
    images = script_images(name, counts, options.data_seed)
    train, test = (torch.arange(len(SCRIPTS[name])).repeat_interleave(count) for count in counts.values())
    return Task.from_arrays(
        name, images["train"], train, images["test"], test,
        classes=SCRIPTS[name], val_fraction=options.val_fraction, seed=seed,
    )  # fmt: skip


def script_images(name: str, counts: dict[str, int], data_seed: int = 0) -> Tensors:
    """The images of a writing system by split: so many of each character, sorted by character."""
    # Other versions of these may draw other curves, or other random numbers.
    made_with = (version("pillow"), features.version("freetype2"), version("matplotlib"), version("numpy"))
    drawing = (SCRIPTS[name], FONTS, SIZE, LEVELS, MASTER, BORDER, SUPERSAMPLING, KNOBS)
    key = (VERSION, drawing, data_seed, counts, made_with)
    return cached(f"scripts/{name}", key, lambda: _render(name, counts, data_seed))


def _render(name: str, counts: dict[str, int], data_seed: int) -> Tensors:
    images: dict[str, list[npt.NDArray[np.uint8]]] = {split: [] for split in counts}
    for character, masters in _masters(SCRIPTS[name]):
        for split, count in counts.items():
            rng = np.random.default_rng(derived_seed(data_seed, "scripts", name, character, split))
            images[split].append(_images(masters, draw_knobs(rng, count, split), rng))
    return {split: torch.from_numpy(np.concatenate(parts)[:, None]) for split, parts in images.items()}


def draw_knobs(rng: np.random.Generator, count: int, split: str) -> dict[str, npt.NDArray[np.float64]]:
    """The values of every knob, one per image of a split."""
    return {name: knob.draw(rng, count, PARITY[split]) for name, knob in KNOBS.items()}


def _images(
    masters: list[Image.Image], knobs: dict[str, npt.NDArray[np.float64]], rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """The images of one character, N×H×W."""
    count = len(knobs["size"])
    fonts = rng.integers(len(masters), size=count)
    inverted = rng.integers(2, size=count).astype(bool)[:, None, None]
    placed = zip(fonts, knobs["size"], knobs["angle"], knobs["right"], knobs["down"], strict=True)
    ink = np.stack([_place(masters[font], *place) for font, *place in placed]) / 255
    dark, contrast, noise = (knobs[name][:, None, None] for name in ("dark", "contrast", "noise"))
    grey = dark + contrast * np.where(inverted, ink, 1 - ink)
    grey += contrast * noise * rng.standard_normal(grey.shape, dtype=np.float32)
    return grey.round().clip(0, 255).astype(np.uint8)


def _place(master: Image.Image, size: float, angle: float, right: float, down: float) -> npt.NDArray[np.uint8]:
    """The ink of the character, 0…255: scaled, rotated about its centre and shifted."""
    fine = SIZE * SUPERSAMPLING
    shrink = (max(master.size) - 2 * BORDER) / (size * SUPERSAMPLING)
    cos, sin = shrink * np.cos(np.radians(angle)), shrink * np.sin(np.radians(angle))
    x, y = (fine / 2 + SUPERSAMPLING * shift for shift in (right, down))
    # Pillow asks where in the master each pixel of the result comes from.
    source = (cos, sin, master.width / 2 - cos * x - sin * y, -sin, cos, master.height / 2 + sin * x - cos * y)
    rotated = master.transform((fine, fine), Image.Transform.AFFINE, source, Image.Resampling.BILINEAR)
    return np.asarray(rotated.reduce(SUPERSAMPLING))


def _masters(characters: str) -> Iterator[tuple[str, list[Image.Image]]]:
    """Each character at master size, in every font that has it."""
    from matplotlib import get_data_path  # slow to import, and not needed if the images are cached
    from matplotlib.ft2font import FT2Font

    folder = Path(get_data_path()) / "fonts" / "ttf"
    for name in FONTS:
        if not (folder / name).is_file():
            raise DataError(f"stream 'scripts': {folder / name} is missing; reinstall matplotlib, which ships it")
    # Pillow draws a box for a character that a font lacks; only matplotlib tells which ones a font has.
    has = [FT2Font(str(folder / name)).get_char_index for name in FONTS]
    # The basic layout does not depend on how Pillow was built.
    fonts = [ImageFont.truetype(folder / name, MASTER, layout_engine=ImageFont.Layout.BASIC) for name in FONTS]
    for character in characters:
        usable = [font for font, index in zip(fonts, has, strict=True) if index(ord(character))]
        yield character, [_master(character, font) for font in usable]


def _master(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    image = Image.new("L", (3 * MASTER, 3 * MASTER))
    ImageDraw.Draw(image).text((MASTER, MASTER), character, fill=255, font=font)
    # Crop to the ink: a font's own box includes the white space before the next letter.
    return ImageOps.expand(image.crop(image.getbbox()), BORDER)
