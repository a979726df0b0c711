"""The images of a task, batch by batch on the device: shuffled and augmented for training, or one after the other.

Images stay uint8 until the network takes them, and what is done to a batch is done to all its images at once. Nothing
is read back from the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .distributed import own_turns, part_of, processes
from .errors import UsageError
from .streams.task import Split

#: Images by head: most methods show a network one task at a time, `joint` several.
ByHead = list[tuple[int, Split]]

#: From a batch of training images, uint8 N×C×H×W on the device, to another of the same shape.
Augment = Callable[[Tensor], Tensor]

#: Splits up to this many bytes are laid out on the device as the network wants them. Larger ones stay where they are,
#: perhaps in a memory-mapped file, and go to the device batch by batch.
RESIDENT = 2 << 30


def resident(splits: ByHead, device: torch.device, layout: torch.memory_format) -> ByHead:
    """The splits on the device, except those that are too large for that, or read when needed."""
    return [
        (head, to_device(split, device, layout) if split.in_memory and split.images.nbytes <= RESIDENT else split)
        for head, split in splits
    ]


def to_device(split: Split, device: torch.device, layout: torch.memory_format = torch.preserve_format) -> Split:
    """The split on the device."""
    images = split.images.to(device, non_blocking=True, memory_format=layout)
    return Split(images, split.labels.to(device, non_blocking=True))


def in_batches(
    split: Split, device: torch.device, size: int, draw: torch.Generator | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels as they are, on the device: in the order they are stored, or shuffled by a generator.

    Several processes take turns, batch by batch: whoever adds something up over the batches adds it up over them, too.
    """
    places: Sequence[Tensor | slice] = (
        [slice(start, start + size) for start in range(0, len(split), size)]
        if draw is None
        else torch.split(torch.randperm(len(split), generator=draw), size)
    )
    for part in split.read(own_turns(places)):
        batch = to_device(part, device)
        yield batch.images, batch.labels


class Batches:
    """Training batches of a task's images.

    batches = Batches(splits, 64, device, flip=True, shift=4)
    for index, pieces, size in batches.shuffled(generator(seed, task, epoch, "order of images")): …

    `augment` is applied last, to the images of one head at a time.
    """

    def __init__(
        self,
        splits: ByHead,
        size: int,
        device: torch.device,
        *,
        flip: bool,
        shift: int,
        augment: Augment | None = None,
    ) -> None:
        self.images = sum(len(split) for _, split in splits)
        self._splits, self._size, self._device = splits, size, device
        self._flip, self._shift, self._augment = flip, shift, augment

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._cut(torch.arange(self.images)))

    def shuffled(self, draw: torch.Generator) -> Iterator[tuple[Tensor, ByHead, int]]:
        """One pass over all images in a random order: the numbers of a batch's images, counted through all splits,
        the images themselves by head, and the size of the batch, of which several processes have a part each.

        Every process has all heads of a batch, perhaps without an image, and at least one image.
        """
        cuts = self._cut(torch.randperm(self.images, generator=draw))
        readers = [
            (head, places, split.read([inside[part] for inside, part in places if len(inside)], draw))
            for head, split, places in self._places(cuts)
        ]
        for number, index in enumerate(cuts):
            pieces = []
            for head, places, reader in readers:
                inside, part = places[number]
                if len(inside):
                    images = to_device(next(reader), self._device)
                    pieces.append((head, self._augmented(images, len(inside), part, draw)))
            yield index[part_of(len(index))], pieces, len(index)

    def _cut(self, order: Tensor) -> list[Tensor]:
        batches = list(torch.split(order, self._size))
        if len(batches) > 1 and len(batches[-1]) < max(2, processes()):  # batch-norm needs two images, a process one
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def _places(self, cuts: Sequence[Tensor]) -> Iterator[tuple[int, Split, list[tuple[Tensor, slice]]]]:
        """Each split, and of each batch the places of its images in it and the process's own part of them."""
        start = 0
        for head, split in self._splits:
            places = []
            for index in cuts:  # counts through all splits
                inside, part = index - start, part_of(len(index))
                if len(self._splits) > 1:
                    here = (inside >= 0) & (inside < len(split))
                    inside = inside[here]
                    if processes() > 1:
                        part = slice(int(here[: part.start].sum()), int(here[: part.stop].sum()))
                places.append((inside, part))
            yield head, split, places
            start += len(split)

    def _augmented(self, split: Split, count: int, part: slice, draw: torch.Generator) -> Split:
        """The images moved and mirrored: they are this part of `count`, for all of which is drawn."""
        images = split.images
        if self._shift:
            moves = torch.randint(2 * self._shift + 1, (2, count), generator=draw)[:, part]
            down, right = moves.to(self._device, non_blocking=True)
            images = shifted(images, down, right, self._shift)
        if self._flip:
            mirrored = torch.rand(count, generator=draw)[part].to(self._device, non_blocking=True) < 0.5
            images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
        if self._augment is not None and len(images):
            images = _checked(self._augment(images), images)
        return Split(images, split.labels)


def _checked(augmented: Tensor, images: Tensor) -> Tensor:
    if not isinstance(augmented, Tensor):
        raise UsageError(f"augment must return images, it returned a {type(augmented).__name__}")
    if augmented.shape != images.shape or augmented.dtype != images.dtype:
        shapes = ("×".join(map(str, tensor.shape)) + f" {tensor.dtype}" for tensor in (images, augmented))
        raise UsageError(
            f"augment was given images {next(shapes)} and returned {next(shapes)}; it must keep shape and type. "
            "From floats in 0…1: (images * 255).round().to(torch.uint8)"
        )
    return augmented


def shifted(images: Tensor, down: Tensor, right: Tensor, most: int) -> Tensor:
    """Each image moved by (down − most, right − most) pixels, 0 ≤ down, right ≤ 2·most; zeros come in."""
    height, width = images.shape[2:]
    padded = F.pad(images, (most, most, most, most))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view: N×C×(2·most+1)×(2·most+1)×H×W
    number = torch.arange(len(images), device=images.device)
    return windows[number, :, 2 * most - down, 2 * most - right]
