"""Layer kinds: names and layouts in torch, linen and nnx, each proven by a forward case."""

from converters.layers.entry import ForwardCase, LayerEntry, Weight
from converters.layers.flax_call import FlaxCall
from converters.layers.layout import UNCHANGED, Layout, Permute
from converters.layers.registry import entries, flax_calls

__all__ = [
    "UNCHANGED",
    "FlaxCall",
    "ForwardCase",
    "LayerEntry",
    "Layout",
    "Permute",
    "Weight",
    "entries",
    "flax_calls",
]
