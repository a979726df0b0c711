"""Which filter owns which weights and feeds which others, for any CNN."""

from .graph import FilterGraph, FilterLayer

__all__ = ["FilterGraph", "FilterLayer"]
