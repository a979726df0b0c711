"""Image files: found in folders, and decoded by several threads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from ...errors import DataError

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Pillow knows these kinds but cannot draw them by itself; for EPS it would start another program on the user's file.
NOT_DRAWN = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "PALM", "PDF", "WMF"}
LIKELY = ("JPEG", "PNG")
CHUNK = 32  # images a job of a thread


def decode_into(
    images: npt.NDArray[np.uint8],
    files: Sequence[Path],
    on_broken: Callable[[int, str], None],
    advance: Callable[[int], object],
    workers: int | None = None,
) -> None:
    """Fill `images` (N×C×H×W) from files, by threads: Pillow lets others run while it decodes.

    `on_broken(number, reason)` is called for a file that cannot be read, in the files' order, and may raise.
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
    pool = ThreadPoolExecutor(workers or os.cpu_count())
    try:
        for job, faults in zip(jobs, pool.map(read_some, jobs), strict=True):  # in order: the same file is named
            for i, reason in faults.items():
                on_broken(i, reason)
            advance(len(job))
    finally:
        pool.shutdown(cancel_futures=True)


def _decoded(file: Path, channels: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """One image, C×H×W."""
    with Image.open(file, formats=_formats()) as image:
        # A JPEG is decoded no finer than needed, which makes photographs several times faster.
        image.draft(None, (2 * max(height, width),) * 2)
        turned = ImageOps.exif_transpose(image)
    small = _converted(turned, MODES[channels]).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(small).reshape(height, width, -1).transpose(2, 0, 1)


@cache
def _formats() -> list[str]:
    """The kinds of image to try, likely ones first: asking each of forty costs more than decoding a small image."""
    Image.init()
    return sorted(Image.OPEN.keys() - NOT_DRAWN, key=lambda kind: (kind not in LIKELY, kind))


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """The image in 8 bits and the channels wanted."""
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


def labelled(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """The image files of each class, in an order that does not depend on the file system."""
    return [
        (folder / name / file, label)
        for label, name in enumerate(classes)
        if (folder / name).is_dir()  # a class may be without test images
        for file in sorted(image_files(folder / name), key=natural)
    ]


def check_images(folder: Path, least: int, purpose: str) -> None:
    count = sum(1 for _ in islice(image_files(folder), least))
    if count == 0:
        besides = not_images(folder)
        raise DataError(f"class folder {folder} holds no image" + (f"; ignored: {besides}" if besides else ""))
    if count < least:
        raise DataError(f"class folder {folder} holds {count} image{'s'[count < 2 :]}; {least} are needed to {purpose}")


def not_images(folder: Path) -> str:
    """What a folder of images holds besides, in words, hidden entries apart."""
    images = set(image_files(folder))
    others = [entry for entry in _entries(folder) if entry.name not in images]
    folders = sum(entry.is_dir() for entry in others)
    endings = sorted({Path(entry.name).suffix.lower() or entry.name for entry in others if not entry.is_dir()})
    files = len(others) - folders
    words = [f"{files} file{'s'[files < 2 :]} ({', '.join(endings)})"] if files else []
    return " and ".join([*words, f"{folders} folder{'s'[folders < 2 :]}"] if folders else words)


def image_files(folder: Path) -> Iterator[str]:
    """The names of the images in a folder."""
    return (entry.name for entry in image_entries(folder))


def image_entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """The images in a folder, in no order."""
    known = {end for end, kind in Image.registered_extensions().items() if kind not in NOT_DRAWN}
    for entry in _entries(folder):
        _, dot, ending = entry.name.rpartition(".")
        # A link that leads nowhere is kept: reading it then says so.
        if dot + ending.lower() in known and not entry.is_dir() and (entry.is_file() or entry.is_symlink()):
            yield entry


def subfolders(folder: Path, expected: str) -> list[str]:
    names = sorted((entry.name for entry in _entries(folder) if entry.is_dir()), key=natural)
    if not names:
        raise DataError(f"{folder} holds no folders; expected was {expected}")
    return names


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, hidden entries apart."""
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
    """Sorts "week 2" before "week 10"; numbers stand at the odd places, so that like is compared with like."""
    parts = re.split(r"(\d+)", name.casefold())
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name
