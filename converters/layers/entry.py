"""What an entry of a layer kind says; one file of `converters/layers/kinds/` holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from converters.layers.layout import Layout

PARAMS = "params"
BATCH_STATS = "batch_stats"


@dataclass(frozen=True)
class Weight:
    """One tensor of a layer: its name on each side, and the layout between them.

    Attributes:
        torch: its name in the torch layer ("weight", "running_mean").
        linen: its name in the `flax.linen` layer ("kernel", "scale").
        nnx: its name in the `flax.nnx` layer.
        layout: the bijection from torch's arrangement to Flax's.
        collection: linen's collection: "params" or "batch_stats".
    """

    torch: str
    linen: str
    nnx: str
    layout: Layout
    collection: str = PARAMS


@dataclass(frozen=True)
class ForwardCase:
    """One configuration of a layer, built three times, and the shape of an input for it.

    The factories take the framework's module (`torch.nn`, `flax.linen`, `flax.nnx`), so that an
    entry is read without importing any of them. Channels, kernel sides and input sides must all
    differ: with equal ones a wrong permutation goes unseen.

    Attributes:
        name: what is special about it, for the test's name.
        torch: `torch.nn` → the layer.
        linen: `flax.linen` → the layer.
        nnx: `flax.nnx` and its rngs → the layer; None where nnx lacks this form (the entry says).
        input_shape: in torch's order (channels second, where there are channels).
        channels_last: whether Flax wants axis 1 of the input, and gives the output's, last.
        ids_below: None for real inputs; else the inputs are integers from 0 to below this.
    """

    name: str
    torch: Callable[[Any], Any]
    linen: Callable[[Any], Any]
    nnx: Callable[[Any, Any], Any] | None
    input_shape: tuple[int, ...]
    channels_last: bool = False
    ids_below: int | None = None


@dataclass(frozen=True)
class LayerEntry:
    """A kind of layer: torch ↔ linen ↔ nnx names and layouts, and the cases that prove them.

    Attributes:
        kind: the class's name in `torch.nn` ("Linear").
        doc: what a user should know; the docstring of the file.
        weights: the tensors that have a counterpart in Flax.
        cases: forward comparisons, at least one.
        dropped: torch name → why Flax has no use for this tensor.
        note: torch layer → what its Flax counterpart must be told, in a few words, or "".

    Raises:
        ValueError: no forward case, or a name is used twice.
    """

    kind: str
    doc: str
    weights: tuple[Weight, ...]
    cases: tuple[ForwardCase, ...]
    dropped: tuple[tuple[str, str], ...] = ()
    note: Callable[[Any], str] = lambda layer: ""

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError(f"the entry {self.kind} has no forward case: nothing proves it")
        torch_names = [weight.torch for weight in self.weights] + [name for name, _ in self.dropped]
        linen_names = [(weight.collection, weight.linen) for weight in self.weights]
        nnx_names = [weight.nnx for weight in self.weights]
        for names in (torch_names, linen_names, nnx_names):
            if len(set(names)) != len(names):
                raise ValueError(f"the entry {self.kind} uses a name twice: {names}")

    def weight(self, torch_name: str) -> Weight | None:
        """The tensor of this torch name; None if the kind has none."""
        return next((weight for weight in self.weights if weight.torch == torch_name), None)
