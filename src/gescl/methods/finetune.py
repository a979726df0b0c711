"""Plain fine-tuning: learn each task as if there were no earlier ones. The lower bound."""

from __future__ import annotations

from typing import ClassVar

from ..networks.multihead import MultiHeadNet
from .base import Method, Strategy


class Finetune(Method):
    """Nothing prevents forgetting."""

    name: ClassVar[str] = "finetune"

    def strategy(self, net: MultiHeadNet) -> Strategy[Finetune]:
        return Strategy(self, net)
