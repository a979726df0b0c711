"""Image files: finding them in folders, and decoding them in several threads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from ...errors import DataError
from .progress import Advance

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Formats that Pillow identifies but cannot decode by itself; for EPS it would run another program on the user's file.
NOT_DECODED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "PALM", "PDF", "WMF"}
LIKELY = ("JPEG", "PNG")
CHUNK = 32  # images per job of a thread
SAMPLE = 100  # images whose size is looked at


def decode_into(
    images: npt.NDArray[np.uint8],
    files: Sequence[Path],
    advance: Advance,
    workers: int | None = None,
) -> dict[int, str]:
    """Fill `images` (N×C×H×W) from files, in threads: Pillow releases Python's lock while it decodes.

    Returns the numbers of the files that cannot be read, each with the reason.
    """
    channels, height, width = images.shape[1:]

    def read_some(some: range) -> dict[int, str]:
        faults: dict[int, str] = {}
        for i in some:
            try:
                images[i] = _decoded(files[i], channels, height, width)
            except Exception as error:  # Pillow's readers raise nearly anything on a damaged file
                faults[i] = _reason(error)
        return faults

    jobs = [range(start, min(start + CHUNK, len(files))) for start in range(0, len(files), CHUNK)]
    broken: dict[int, str] = {}
    pool = ThreadPoolExecutor(workers or os.cpu_count())
    try:
        for job, faults in zip(jobs, pool.map(read_some, jobs), strict=True):  # in order: so are the files named
            broken |= faults
            advance(len(job))
    finally:
        pool.shutdown(cancel_futures=True)
    return broken


def refuse_broken(broken: Mapping[Path, str], remedy: str) -> None:
    """An error that names all files that cannot be read, if there are any, and what to do about them."""
    if not broken:
        return
    lines = [f"{file}: {reason}" for file, reason in broken.items()]
    if len(lines) == 1:
        raise DataError(f"{lines[0]}; {remedy}")
    listed = "\n  ".join(lines)
    raise DataError(f"{len(lines)} images cannot be read; {remedy}:\n  {listed}")


def _decoded(file: Path, channels: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """One image, C×H×W."""
    with Image.open(file, formats=_formats()) as image:
        # A JPEG is decoded at no higher resolution than needed: several times faster for photographs.
        image.draft(None, (2 * max(height, width),) * 2)
        turned = ImageOps.exif_transpose(image)
    return pixels_of(turned, channels, (height, width))


def pixels_of(image: Image.Image, channels: int, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    """An opened image as C×H×W, resized to `size` (height and width) if that is given."""
    plain = _converted(image, MODES[channels])
    if size is not None:
        plain = plain.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return np.asarray(plain).reshape(plain.height, plain.width, -1).transpose(2, 0, 1)


@cache
def _formats() -> list[str]:
    """The formats to try, likely ones first: trying all forty takes longer than decoding a small image."""
    Image.init()
    return sorted(Image.OPEN.keys() - NOT_DECODED, key=lambda name: (name not in LIKELY, name))


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """The image with 8 bits per channel, in the given mode."""
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.asarray(image)
        top = 1 if image.mode == "F" else 65535
        if not (values.min() >= 0 and values.max() <= top):
            raise ValueError(f"its values must lie in 0…{top}, they lie in {values.min():.6g}…{values.max():.6g}")
        image = Image.fromarray((values * (255 / top)).round().astype(np.uint8))
    if mode != "RGBA" and (image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "is broken, or not an image that Pillow can read"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"cannot be read as an image ({text})"


def typical_side(folder: Path) -> int | None:
    """The median of the shorter sides of images in class folders, by a sample of them; None if none can be read."""
    files = [folder / name / file for name in subfolders(folder, "one folder per class")
             for file in sorted(image_files(folder / name), key=natural)]  # fmt: skip
    sides = []
    for file in files[:: max(1, len(files) // SAMPLE)]:
        with suppress(Exception), Image.open(file, formats=_formats()) as image:  # a broken one is told when it is read
            sides.append(min(image.size))
    return int(median(sides)) if sides else None


def labelled(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """The image files of each class with its label, in an order that does not depend on the file system."""
    return [
        (folder / name / file, label)
        for label, name in enumerate(classes)
        if (folder / name).is_dir()  # a class may have no test images
        for file in sorted(image_files(folder / name), key=natural)
    ]


def check_images(folder: Path, least: int, purpose: str) -> None:
    """Refuse a class folder with fewer than `least` images."""
    count = sum(1 for _ in islice(image_files(folder), least))
    if count == 0:
        others = not_images(folder)
        raise DataError(f"class folder {folder} holds no image" + (f"; ignored: {others}" if others else ""))
    if count < least:
        raise DataError(f"class folder {folder} holds {_counted(count, 'image')}; {least} are needed to {purpose}")


def not_images(folder: Path) -> str:
    """What a folder holds other than images and hidden entries: "2 files (.csv, .txt) and 1 folder"."""
    images = set(image_files(folder))
    others = [entry for entry in _entries(folder) if entry.name not in images]
    files = [Path(entry.name) for entry in others if not entry.is_dir()]
    endings = sorted({file.suffix.lower() or file.name for file in files})
    folders = len(others) - len(files)
    words = [f"{_counted(len(files), 'file')} ({', '.join(endings)})"] if files else []
    return " and ".join([*words, _counted(folders, "folder")] if folders else words)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def image_files(folder: Path) -> Iterator[str]:
    """The names of the images in a folder, in no particular order."""
    return (entry.name for entry in image_entries(folder))


def image_entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The images in a folder, in no particular order."""
    known = {end for end, name in Image.registered_extensions().items() if name not in NOT_DECODED}
    for entry in _entries(folder):
        _, dot, ending = entry.name.rpartition(".")
        # A broken link is kept: reading it then reports it.
        if dot + ending.lower() in known and not entry.is_dir() and (entry.is_file() or entry.is_symlink()):
            yield entry


def subfolders(folder: Path, expected: str) -> list[str]:
    """The names of the folders in a folder, in natural order; none is an error that says what was expected."""
    names = sorted((entry.name for entry in _entries(folder) if entry.is_dir()), key=natural)
    if not names:
        raise DataError(f"{folder} holds no folders; expected {expected}")
    return names


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder, except hidden ones."""
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except FileNotFoundError:
        raise DataError(f"folder {folder} does not exist") from None
    except NotADirectoryError:
        raise DataError(f"{folder} is a file; a folder is needed") from None
    except OSError as error:
        raise DataError(f"folder {folder} cannot be read: {error.strerror}") from None


def natural(name: str) -> tuple[list[str | int], str]:
    """Sort key that puts "week 2" before "week 10": the odd elements are numbers, the even ones text."""
    parts = re.split(r"(\d+)", name.casefold())
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name
