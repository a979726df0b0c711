"""Our training loop compared with those people write: a bare one over tensors, and DataLoader with PIL.

    python bench/loop.py [--repeats 7] [--out results/bench-loop.json]

All train the same network with the same optimiser on as many images of the same size.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from gescl.networks.resnet import resnet20
from subjects import CLASSES, made_split, our_loop
from timing import Work, arguments, medians, ratio, turns, write

IMAGES = 256  # a repeat: few steps, so that the subjects take turns quickly
SHIFT = 4
CASES = [*product(("paper3", "ags6"), (64, 256), (False, True)), *product(("resnet20",), (64, 256), (False,))]


def plain_network(name: str) -> nn.Module:
    """The network as its paper draws it."""
    if name == "resnet20":
        return nn.Sequential(resnet20(3), nn.Linear(64, CLASSES))
    layers: list[nn.Module] = []
    before = 3
    for filters in (32, 64, 128):
        layers += [nn.Conv2d(before, filters, 3, padding=1), nn.ReLU()]
        if name == "ags6":
            layers += [nn.Conv2d(filters, filters, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2), *([nn.Dropout(0.25)] if name == "ags6" else [])]
        before = filters
    layers.append(nn.Flatten())
    if name == "ags6":
        layers += [nn.Linear(2048, 256), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(256 if name == "ags6" else 2048, CLASSES))


def ours(network: str, batch: int, augmented: bool) -> Work:
    return our_loop(network, batch, IMAGES, augmented=augmented).epoch


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    optimizer.step()
    return loss.item()


def bare(network: str, batch: int, augmented: bool) -> Work:
    """Normalised float images in one tensor, indexed by a shuffled order; augmentation by torch, image by image."""
    model = plain_network(network).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    split = made_split(IMAGES)
    pixels = (split.images.float() / 255 - 0.5) / 0.29
    padded = F.pad(pixels, (SHIFT, SHIFT, SHIFT, SHIFT)) if augmented else pixels

    def moved(number: int) -> Tensor:
        y, x = random.randint(0, 2 * SHIFT), random.randint(0, 2 * SHIFT)
        image = padded[number, :, y : y + 32, x : x + 32]
        return image.flip(2) if random.random() < 0.5 else image

    def epoch() -> None:
        total = 0.0
        for index in torch.split(torch.randperm(IMAGES), batch):
            images = torch.stack([moved(int(i)) for i in index]) if augmented else pixels[index]
            total += step(model, optimizer, images, split.labels[index])

    return epoch


class PilDataset(Dataset[tuple[Tensor, int]]):
    """An image at a time through PIL, as the common data sets and transforms do it."""

    def __init__(self, augmented: bool) -> None:
        split = made_split(IMAGES)
        self.images, self.labels = split.images.permute(0, 2, 3, 1).numpy(), split.labels.tolist()
        self.augmented = augmented
        self.mean, self.std = torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.29)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[number])
        if self.augmented:
            image = ImageOps.expand(image, border=SHIFT, fill=0)
            x, y = random.randint(0, 2 * SHIFT), random.randint(0, 2 * SHIFT)
            image = image.crop((x, y, x + 32, y + 32))
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        return tensor.sub(self.mean).div(self.std), self.labels[number]


def loader(network: str, batch: int, augmented: bool) -> Work:
    """DataLoader in the process itself: what its workers would do is work all the same."""
    model = plain_network(network).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = DataLoader(PilDataset(augmented), batch, shuffle=True)

    def epoch() -> None:
        total = 0.0
        for images, labels in batches:
            total += step(model, optimizer, images, labels)

    return epoch


def main() -> None:
    options = arguments(__doc__, "loop", repeats=7)
    results: list[dict[str, Any]] = []
    print("network  batch  augmented   images/s: ours   bare  loader    ours/bare  ours/loader")
    with turns({"ours": ours, "bare": bare, "loader": loader}) as alternately:
        for case in CASES:
            seconds = alternately(case, options.repeats)
            speeds = {name: IMAGES / took for name, took in medians(seconds).items()}
            over = {name: ratio(seconds[name], seconds["ours"]) for name in ("bare", "loader")}
            network, batch, augmented = case
            print(
                f"{network:7}  {batch:5}  {augmented!s:9}   {speeds['ours']:14.0f} {speeds['bare']:6.0f} "
                f"{speeds['loader']:7.0f}    {over['bare']['median']:9.2f}  {over['loader']['median']:11.2f}",
                flush=True,
            )
            setting = {"network": network, "batch": batch, "augmented": augmented, "images_per_second": speeds}
            results.append({**setting, "ours_over_bare": over["bare"], "ours_over_loader": over["loader"]})
    write(options.out, options.repeats, {"images": IMAGES, "results": results})


if __name__ == "__main__":
    main()
