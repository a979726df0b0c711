from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gescl.errors import DataError
from gescl.streams.folder import folder_task

from .gears import gears, save


def one_picture(
    tmp_path: Path, image: Image.Image, ending: str = "png", saving: Any = None, **options: Any
) -> torch.Tensor:
    """What becomes of a picture, C×H×W."""
    root = gears(tmp_path / "gears", test=0)
    save(root / "test" / "worm" / f"picture.{ending}", image, **(saving or {}))
    task = folder_task(root, **{"image_size": (image.height, image.width), **options})
    assert task.test is not None and len(task.test) == 1
    return task.test.images[0]


def test_pictures_of_any_size_are_resized_to_height_and_width(tmp_path: Path) -> None:
    ramp = Image.fromarray(np.tile(np.arange(0, 240, 2, dtype=np.uint8), (60, 1)))  # bright to the right
    image = one_picture(tmp_path, ramp, image_size=(6, 24), channels=1)
    assert image.shape == (1, 6, 24)
    assert image[0].float().diff(dim=1).min() > 0 and image[0].float().std(0).max() == 0


@pytest.mark.parametrize(
    ("image", "colour"),
    [
        pytest.param(Image.new("1", (4, 4), 1), (255, 255, 255), id="black and white"),
        pytest.param(Image.new("L", (4, 4), 77), (77, 77, 77), id="grey"),
        pytest.param(Image.new("P", (4, 4), 1), (10, 200, 30), id="palette"),
        pytest.param(Image.new("RGB", (4, 4), (10, 200, 30)), (10, 200, 30), id="colour"),
        pytest.param(Image.new("RGBA", (4, 4), (10, 200, 30, 255)), (10, 200, 30), id="opaque"),
        pytest.param(Image.new("RGBA", (4, 4), (10, 200, 30, 0)), (255, 255, 255), id="transparent"),
        pytest.param(Image.new("RGBA", (4, 4), (0, 0, 0, 51)), (204, 204, 204), id="half transparent"),
        pytest.param(Image.new("LA", (4, 4), (0, 0)), (255, 255, 255), id="grey and transparent"),
    ],
)
def test_any_mode_becomes_colour_on_white(tmp_path: Path, image: Image.Image, colour: tuple[int, int, int]) -> None:
    if image.mode == "P":
        image.putpalette([0, 0, 0, 10, 200, 30])
    assert one_picture(tmp_path, image)[:, 2, 2].tolist() == list(colour)


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_transparent_colour_of_a_picture_becomes_white(tmp_path: Path, mode: str) -> None:
    image = Image.new(mode, (4, 4))
    if mode == "P":
        image.putpalette([0, 0, 0, 10, 200, 30])
    saving = {"transparency": (0, 0, 0) if mode == "RGB" else 0}
    assert one_picture(tmp_path, image, saving=saving)[:, 2, 2].tolist() == [255, 255, 255]


def test_transparency_is_kept_with_four_channels(tmp_path: Path) -> None:
    image = Image.new("RGBA", (4, 4), (10, 200, 30, 51))
    assert one_picture(tmp_path, image, channels=4)[:, 2, 2].tolist() == [10, 200, 30, 51]


def test_colour_becomes_grey_by_luminance(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4), (0, 255, 0))
    assert one_picture(tmp_path, image, channels=1)[:, 2, 2].tolist() == [150]


@pytest.mark.parametrize(("ending", "kind"), [("png", np.uint16), ("tiff", np.uint16), ("tif", np.int32)])
def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path: Path, ending: str, kind: Any) -> None:
    values = np.array([[0, 257, 32896, 65535]] * 4)
    image = one_picture(tmp_path, Image.fromarray(values.astype(kind)), ending, channels=1)
    assert image[0, 0].tolist() == [0, 1, 128, 255]


def test_float_grey_in_0_to_1_is_scaled(tmp_path: Path) -> None:
    values = np.array([[0, 0.2, 0.5, 1]] * 4, np.float32)
    assert one_picture(tmp_path, Image.fromarray(values), "tiff", channels=1)[0, 0].tolist() == [0, 51, 128, 255]


@pytest.mark.parametrize(
    ("values", "top"),
    [
        pytest.param(np.full((4, 4), 300.0, np.float32), "0…1", id="float too large"),
        pytest.param(np.full((4, 4), np.nan, np.float32), "0…1", id="NaN"),
        pytest.param(np.full((4, 4), -1, np.int32), "0…65535", id="negative"),
        pytest.param(np.full((4, 4), 70000, np.int32), "0…65535", id="32 bits"),
    ],
)
def test_a_picture_whose_range_nobody_can_guess_is_refused(tmp_path: Path, values: Any, top: str) -> None:
    with pytest.raises(DataError, match=rf"picture\.tiff: .*its values must lie in {top}, they lie in"):
        one_picture(tmp_path, Image.fromarray(values), "tiff")


def test_a_photograph_is_turned_as_its_camera_was_held(tmp_path: Path) -> None:
    upright = Image.fromarray(np.repeat([[250], [5]], 8, 0).astype(np.uint8).repeat(16, 1))  # bright above
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn by 90° clockwise to see it upright
    lying = upright.transpose(Image.Transpose.ROTATE_90)
    image = one_picture(tmp_path, lying, "jpg", saving={"exif": exif}, image_size=16, channels=1)
    assert image[0, :6].min() > 240 and image[0, 10:].max() < 15


def test_a_large_photograph_looks_the_same_as_when_decoded_in_full(tmp_path: Path) -> None:
    y, x = np.mgrid[:800, :600]
    photo = Image.fromarray((np.stack([x / 600, y / 800, np.sin(x / 80) / 2 + 0.5], 2) * 255).astype(np.uint8))
    small = one_picture(tmp_path, photo, "jpg", image_size=(20, 15)).permute(1, 2, 0).numpy()
    full = np.asarray(photo.resize((15, 20), Image.Resampling.BICUBIC))
    assert np.abs(small.astype(int) - full).max() <= 6


def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 4), grey) for grey in (30, 220)]
    saving = {"save_all": True, "append_images": frames[1:]}
    assert one_picture(tmp_path, frames[0], "gif", saving=saving)[0, 2, 2] == 30
