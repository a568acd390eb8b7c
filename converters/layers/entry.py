"""What an entry of a layer kind says; one file of `converters/layers/kinds/` holds it."""

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
    """One piece of a layer: a torch tensor or a part of one, and where it is in Flax.

    Several weights of one torch name are its parts (an LSTM's gates); several of one Flax name are its
    pieces, joined in the order in which the entry lists them.

    Attributes:
        torch: its name in the torch layer's state dict ("weight", "out_proj.weight").
        linen: its name in the `flax.linen` layer ("kernel", "query/kernel").
        nnx: its name in the `flax.nnx` layer.
        layout: the bijection from torch's arrangement to Flax's.
        collection: linen's collection: "params" or "batch_stats".
        part: what of the torch tensor; None: all of it.
        join: how the pieces of one Flax array are put together; the same for all of them.
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
    """The layer's output: one input, and whatever the case has beside it by name."""
    return layer(inputs, **arguments)


@dataclass(frozen=True)
class ForwardCase:
    """One configuration of a torch layer, and the shape of an input for it.

    Its counterparts in linen and nnx are what the layer's entry says (`LayerEntry.flax`). The factory takes
    `torch.nn`, so that an entry is read without importing it. Channels, kernel sides and input sides must all
    differ: with equal ones a wrong permutation goes unseen.

    Attributes:
        name: what is special about it, for the test's name.
        torch: `torch.nn` → the layer.
        input_shape: in torch's order (channels second, where there are channels).
        of: how the name of the Flax class begins ("converters.modules"), where it is not the first of those
            that the entry has.
        ids_below: None for real inputs; else the inputs are integers from 0 to below this.
        arguments: a numpy generator → further arguments by name, arrays or tuples of arrays; both
            sides get the same (converters.modules' names are torch's).
        options: further ones that are not arrays.
        torch_call: how torch's layer is called, where not as `layer(inputs, **arguments)`.
        flax_call: how Flax's is, where not as its `FlaxCall` says.
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
    """A kind of layer: torch ↔ linen ↔ nnx names and layouts, and the cases that prove them.

    Attributes:
        kind: the class's name in `torch.nn` ("Linear").
        doc: what a user should know; the docstring of the file.
        weights: the tensors that have a counterpart in Flax; or a function that gives them for a
            torch layer, where they depend on how that is configured (heads, directions, groups).
            None of its own for a layer made of others (TransformerEncoderLayer): each of those is
            converted as what it is, under its own name.
        cases: forward comparisons, at least one.
        dropped: torch name → why Flax has no use for this tensor, where it is not among the weights.
        flax: torch layer and API → the Flax modules that compute as it does, the one to take first; none
            where there is none for how it is configured.

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
        """The pieces of a torch layer (a parameter that it was made without may be among them).

        Raises:
            ValueError: a whole tensor or an array that is not joined is named twice.
        """
        if not callable(self.weights):
            return self.weights
        weights = self.weights(layer)
        self._check(weights, [])
        return weights

    def calls(self, layer: Any, api: Api) -> tuple[FlaxCall, ...]:
        """The Flax modules that compute as a torch layer does (`flax`)."""
        try:
            return self.flax(layer, api)
        except AttributeError:
            if type(layer).__module__.startswith("torch."):
                raise
            return ()  # a user's subclass without what torch's constructor sets

    def note(self, layer: Any, api: Api) -> str:
        """What the Flax counterpart of a torch layer must be told, in a few words, or ""."""
        calls = self.calls(layer, api)
        return calls[0].note if calls else ""

    def _check(self, weights: Weights, dropped: list[str]) -> None:
        whole = [weight.torch for weight in weights if weight.part is None] + dropped
        alone = [weight for weight in weights if weight.join == ALONE]
        linen_names = [(weight.collection, weight.linen) for weight in alone]
        nnx_names = [weight.nnx for weight in alone]
        for names in (whole, linen_names, nnx_names):
            if len(set(names)) != len(names):
                raise ValueError(f"the entry {self.kind} uses a name twice: {names}")
