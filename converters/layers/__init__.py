"""Kinds of layers: names and layouts in torch, linen and nnx, each proven by a forward case."""

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.layout import UNCHANGED, Layout, Permute
from converters.layers.registry import entries

__all__ = ["UNCHANGED", "ForwardCase", "LayerEntry", "Layout", "Permute", "Weight", "entries"]
