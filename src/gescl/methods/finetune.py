"""Plain fine-tuning: learn each task as if there had been none before. The lower bound."""

from __future__ import annotations

from typing import ClassVar

from ..networks.multihead import MultiHeadNet
from .method import Keeper, Method


class Finetune(Method):
    """Nothing is kept."""

    name: ClassVar[str] = "finetune"

    def keeper(self, net: MultiHeadNet) -> Keeper[Finetune]:
        return Keeper(self, net)
