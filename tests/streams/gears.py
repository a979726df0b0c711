"""Folders of pictures for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

GREYS = {"bevel": 50, "worm": 200}


def save(path: Path, image: Image.Image | int = 128, **options: Any) -> Path:
    """An image file; a number is a grey picture of that value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (image if isinstance(image, Image.Image) else Image.new("L", (12, 10), image)).save(path, **options)
    return path


def gears(root: Path, *, train: int = 5, test: int = 2) -> Path:
    """A task folder of two classes, the value of a picture telling its class."""
    for name, grey in GREYS.items():
        for split, count in (("train", train), ("test", test)):
            for i in range(count):
                save(root / split / name / f"{i}.png", grey + i)
    return root
