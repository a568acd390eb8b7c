"""Entry of a layer kind, declared in one file of `converters/layers/kinds/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from converters.layers.flax_call import Api, FlaxCall
from converters.layers.join import ALONE, Join
from converters.layers.layout import UNCHANGED, Layout, Part

PARAMS = "params"
BATCH_STATS = "batch_stats"


@dataclass(frozen=True)
class Weight:
    """Piece of a layer: a torch tensor or a part of it, and its location in Flax.

    Several weights with one torch name are its parts (an LSTM's gates). Several weights with one
    Flax name are its pieces, joined in the order of the entry.

    Attributes:
        torch: its name in the torch layer's state dict ("weight", "out_proj.weight").
        linen: its name in the `flax.linen` layer ("kernel", "query/kernel").
        nnx: its name in the `flax.nnx` layer.
        layout: the bijection from torch's arrangement to Flax's.
        collection: linen's collection: "params" or "batch_stats".
        part: the part of the torch tensor; None for all of it.
        join: how the pieces of one Flax array are joined; the same for all pieces.
    """

    torch: str
    linen: str
    nnx: str
    layout: Layout = UNCHANGED
    collection: str = PARAMS
    part: Part | None = None
    join: Join = ALONE


Weights = tuple[Weight, ...]


def call(layer: Any, inputs: Any, arguments: Mapping[str, Any]) -> Any:
    """Call a layer with one input, and the other arguments of the case by name."""
    return layer(inputs, **arguments)


@dataclass(frozen=True)
class ForwardCase:
    """Configuration of a torch layer, and the shape of an input for it.

    The layer's entry defines its counterparts in linen and nnx (`LayerEntry.flax`). The factory
    takes `torch.nn`, so that an entry can be read without importing it. Channels, kernel sides and
    input sides must all differ: with equal sizes a wrong permutation stays unnoticed.

    Attributes:
        name: the special property of the case, for the test's name.
        torch: `torch.nn` → the layer.
        input_shape: in torch's order (channels second, where there are channels).
        of: the prefix of the Flax class's name ("converters.modules"), if the class is not the
            entry's first.
        ids_below: None for real inputs; otherwise the inputs are integers from 0 to below this.
        arguments: a numpy generator → further arguments by name, arrays or tuples of arrays; both
            sides get the same (converters.modules' names are torch's).
        options: further arguments that are not arrays.
        torch_call: calls torch's layer, if not as `layer(inputs, **arguments)`.
        flax_call: calls Flax's layer, if not as in its `FlaxCall`.
    """

    name: str
    torch: Callable[[Any], Any]
    input_shape: tuple[int, ...]
    of: str = ""
    ids_below: int | None = None
    arguments: Callable[[Any], Mapping[str, Any]] = lambda rng: {}
    options: Mapping[str, Any] = field(default_factory=dict)
    torch_call: Callable[[Any, Any, Mapping[str, Any]], Any] = call
    flax_call: Callable[[Any, Any, Mapping[str, Any]], Any] | None = None


@dataclass(frozen=True)
class LayerEntry:
    """Layer kind: names and layouts in torch, linen and nnx, and the cases that prove them.

    Attributes:
        kind: the class's name in `torch.nn` ("Linear").
        doc: notes for the user; the docstring of the file.
        weights: the tensors with a counterpart in Flax; or a function that returns them for a torch
            layer, if they depend on its configuration (heads, directions, groups). Empty for a
            layer made of other layers (TransformerEncoderLayer): each of those is converted by its
            own kind, under its own name.
        cases: forward comparisons, at least one.
        dropped: torch name → reason why Flax has no use for this tensor.
        flax: torch layer and API → the equivalent Flax modules, the preferred one first; empty if
            there is none for the configuration.

    Raises:
        ValueError: no forward case, or a name is used twice.
    """

    kind: str
    doc: str
    weights: Weights | Callable[[Any], Weights]
    cases: tuple[ForwardCase, ...]
    flax: Callable[[Any, Api], tuple[FlaxCall, ...]]
    dropped: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError(f"the entry {self.kind} has no forward case: nothing proves it")
        if not callable(self.weights):
            self._check(self.weights, [name for name, _ in self.dropped])

    def weights_of(self, layer: Any) -> Weights:
        """Return the pieces of a torch layer, possibly including a parameter that the layer lacks.

        Raises:
            ValueError: a whole tensor or an array that is not joined is named twice.
        """
        if not callable(self.weights):
            return self.weights
        weights = self.weights(layer)
        self._check(weights, [])
        return weights

    def calls(self, layer: Any, api: Api) -> tuple[FlaxCall, ...]:
        """Return the Flax modules that compute the same as a torch layer (`flax`)."""
        try:
            return self.flax(layer, api)
        except AttributeError:
            if type(layer).__module__.startswith("torch."):
                raise
            return ()  # a user's subclass without the attributes that torch's constructor sets

    def note(self, layer: Any, api: Api) -> str:
        """Return what the user must set on the Flax counterpart of a torch layer, in a few words, or ""."""
        calls = self.calls(layer, api)
        return calls[0].note if calls else ""

    def _check(self, weights: Weights, dropped: list[str]) -> None:
        complete = [weight.torch for weight in weights if weight.part is None] + dropped
        alone = [weight for weight in weights if weight.join == ALONE]
        linen_names = [(weight.collection, weight.linen) for weight in alone]
        nnx_names = [weight.nnx for weight in alone]
        for names in (complete, linen_names, nnx_names):
            if len(set(names)) != len(names):
                raise ValueError(f"the entry {self.kind} uses a name twice: {names}")
