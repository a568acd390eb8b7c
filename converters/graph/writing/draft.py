"""State shared while the calls of a graph are written, and the draft of one call."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from converters.checkpoint.dtypes import torch_to_numpy
from converters.graph.draws import Modes
from converters.graph.expression import code
from converters.graph.ir import (
    Call,
    Free,
    Given,
    Graph,
    Op,
    calls,
)
from converters.graph.recording.shared import first_names, with_shared
from converters.graph.starts.watch import Starts
from converters.graph.writing.initial import Initial
from converters.graph.writing.layers import Layer, layer_of
from converters.graph.writing.layout import (
    layouts,
)
from converters.graph.writing.original.constructors import fills_itself
from converters.graph.writing.original.functions import own_frames, within
from converters.graph.writing.original.names import argument_name, label_path
from converters.graph.writing.original.settings import Settings
from converters.graph.writing.place import buffer_path
from converters.graph.writing.precision.dtypes import cast_only
from converters.graph.writing.training import Training
from converters.layers.reparametrized import class_before
from converters.mapping.flattened_convolutions import flattened_inputs
from converters.mapping.paths import Api
from converters.modules.linen.modes import Sequential

# How many elements a constant may have that is written down.
_WRITTEN = 64


@dataclass(frozen=True)
class Missing:
    """An operator that nobody can write in JAX.

    Attributes:
        op: its name.
        reason: why not.
        path: the module that needs it.
        line: "file.py:12", the line of the original.
    """

    op: str
    reason: str
    path: str
    line: str


@dataclass
class Draft:
    """The source of one call of a module.

    Attributes:
        path: path of the module.
        module: the torch module.
        arguments: names of the call's arguments.
        sizes: names of sizes that follow the arguments.
        body: statements.
        result: the returned expression.
        children: attribute path → the module's path below, in the order of their first use.
        held: used parameters and buffers of the module itself, by name.
        labels: positions of its results in the original's returned value.
        dropouts: name → rate and axes of the dropouts that the original has as functions.
        nullable: arguments that may be None.
        spared: nullable arguments that a caller of the model may leave out.
        absent: positions of results that may be None.
        kinds: argument → its annotation, if it is no tensor.
        result_kinds: position of a result → its annotation, if it is no tensor.
    """

    path: str
    module: torch.nn.Module
    arguments: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    body: list[ast.stmt] = field(default_factory=list)
    result: ast.expr = field(default_factory=lambda: ast.Constant(None))
    children: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    dropouts: dict[str, tuple[Any, tuple[int, ...]]] = field(default_factory=dict)
    nullable: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    absent: frozenset[int] = frozenset()
    kinds: Mapping[str, str] = field(default_factory=dict)
    result_kinds: Mapping[int, str] = field(default_factory=dict)


class Drafter:
    """State that all calls of a graph share while they are written (by
    `converters.graph.writing.body`).
    """

    def __init__(
        self,
        graph: Graph,
        root: torch.nn.Module,
        constants: Mapping[str, Any],
        modes: Modes = Modes(),  # noqa: B008 (frozen)
        starts: Starts | None = None,
        api: Api = "linen",
        arguments: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.graph = graph
        self.api: Api = api
        self.root = root
        self.constants = constants
        self.missing: list[Missing] = []
        # Sizes that the source holds as numbers, each with where: the original does not say what gives them.
        self.baked: dict[str, None] = {}
        self.modules = dict(root.named_modules(remove_duplicate=False))
        self.settings = Settings(root, arguments or {})
        self.training = Training(graph, self.modules, modes, api)
        self.initial = Initial(self, starts)
        self.layers: dict[str, Layer] = {}
        self.buffers = {
            f"{path}.{name}" if path else name
            for path, module in self.modules.items()
            for name in module._buffers
        }
        self.volatile = {
            f"{path}.{name}" if path else name
            for path, module in self.modules.items()
            for name in module._non_persistent_buffers_set
        }
        # Constants of the graph that stand in no module: small ones are written down, others stored.
        loose = {
            key
            for key in constants
            if key not in self.buffers and key.rpartition(".")[0] not in self._owners(key)
        }
        self.graph_constants = {key for key in loose if constants[key].numel() <= _WRITTEN}
        self.volatile |= loose - self.graph_constants
        self.buffers |= loose - self.graph_constants
        self.read: set[str] = set()
        self.first = first_names(root)
        self.called = {module_call.path for module_call in calls(graph.root)}
        # Calls of modules within one that does not hold them: it was given the module.
        self.foreign: set[tuple[str, int]] = set()
        self._note_foreign(graph.root, "")
        self.graph = graph = with_shared(graph, constants, self.dissolves, self.graph_constants)
        shapes = [
            tuple(_hint(side) for side in graph.facts[number].shape) for _, number in graph.inputs
        ]
        # As `migrate weights` is told by whoever writes the folder: the shapes say it for images only.
        images = all(graph.facts[number].dtype.is_floating_point for _, number in graph.inputs)
        self.flattened = flattened_inputs(root, shapes if images else None)
        self.layouts = layouts(
            graph,
            constants,
            self._channels_last,
            self._in_function,
            lambda path: class_before(self.modules[path]),
        )
        # Which method of a module a call of it is.
        self.methods: dict[tuple[str, int], str] = {}
        # Sizes that a call is given, as none of its tensors shows them.
        self.sizes: dict[tuple[str, int], list[sympy.Expr]] = {}
        self.symbols: dict[sympy.Expr, str] = {}
        for entry in range(len(graph.methods) + 1):
            before = len(self.symbols)
            for _, number in graph.entry(entry).inputs:
                for side in graph.facts[number].shape:
                    if isinstance(side, Free):
                        usual = ("batch_size", "length", "width", "depth")
                        number_of = len(self.symbols) - before
                        name = usual[number_of] if number_of < 4 else f"size_{number_of}"
                        self.symbols.setdefault(side.expression, name)
        # Calls that are given the dtype that the model computes in.
        self.dtype_given: set[tuple[str, int]] = set()
        # Parameters that are only read in another dtype than that.
        self.cast_only = cast_only(graph)
        # Name of a function that is still to be written → what for.
        self.stubs: dict[str, str] = {}
        self.functions: list[ast.FunctionDef] = []
        # Streams of random numbers that the model draws from.
        self.streams: set[str] = set()
        # What functions do → what they are called, and their arguments in the order of their use.
        self.forms: dict[tuple[str, str], dict[str, tuple[str, tuple[int, ...]]]] = {}
        self.recomputed: set[str] = set()
        # Path of a module → modules below it that others call, by attribute.
        self.reached: dict[str, dict[str, str]] = {}
        # Path of a module that holds nothing → the function that its Sequential has for it.
        self.members: dict[str, ast.expr] = {}
        # Path of a module → what others read of it, by name.
        self.lent: dict[str, dict[str, str]] = {}

    def in_dtype(self, key: str, array: ast.expr) -> ast.expr:
        """A parameter or buffer in the dtype that the model computes in, where it is used in that."""
        if not self.in_compute_dtype(key):
            return array
        return code("jnp.asarray({x}, self.dtype)", x=array)

    def in_compute_dtype(self, key: str) -> bool:
        """Whether a parameter or buffer is used in the dtype that the model computes in."""
        return key in (self.graph.narrow or ()) and key not in self.cast_only

    def classes_of_ours(self) -> list[type]:
        """The classes of `converters.modules` that the layers are."""
        classes = [layer.ours for layer in self.layers.values()]
        classes += [Sequential] if self.training.sequentials and self.api == "linen" else []
        return list(dict.fromkeys(cls for cls in classes if cls is not None))

    def _in_function(self, module_call: Call, item: Op) -> bool:
        """Whether an operator was recorded in a function that a module's forward calls."""
        return (
            len(own_frames(within(self.forward(module_call), item.frames, module_call.frames))) > 1
        )

    def forward(self, module_call: Call) -> Any:
        """The function of the original that a call runs."""
        return getattr(type(self.modules[module_call.path]), module_call.method)

    def _channels_last(self, module_call: Call) -> bool:
        if module_call.is_entry or self.dissolves(module_call):
            return False
        layer = self.layer(module_call.path)
        return layer is not None and layer.flax.channels_last

    def _note_foreign(self, module_call: Call, owner: str) -> None:
        """Note the calls of other modules within what is written for the module `owner`."""
        for item in module_call.body:
            if isinstance(item, Call):
                if owner and not item.path.startswith(f"{owner}."):
                    self.foreign.add((item.path, item.number))
                self._note_foreign(item, owner if self.dissolves(item) else item.path)

    def _owners(self, key: str) -> set[str]:
        """The module that holds a parameter of this name, if there is one."""
        owner, _, name = key.rpartition(".")
        module = self.modules.get(owner)
        return {owner} if module is not None and name in module._parameters else set()

    def stored(self) -> dict[str, Any]:
        """Path in the port → values, of the buffers that it reads and no checkpoint has."""
        return {
            buffer_path(self.root, key, self.api): torch_to_numpy(self.constants[key], key)
            for key in sorted(self.read)
            if key in self.volatile and key not in self.recomputed
        }

    def layer(self, path: str) -> Layer | None:
        """The layer of Flax's that a module is, if it is one."""
        if path in self.training.dropouts:
            return self.training.dropouts[path]
        if path not in self.layers:
            called, plain = path in self.called, self._plain(path)
            layer = layer_of(self.modules[path], called, plain, self.api)
            if layer is None or self._elsewhere(path):
                return None
            self.layers[path] = self.training.layer(path, layer)
        return self.layers[path]

    def is_told(self, cls: type) -> bool:
        """Whether modules of a class of the original are told whether they are trained."""
        return self.training.is_told(cls, self.graph.root, self.dissolves, self.layer)

    def _plain(self, path: str) -> bool:
        """Whether all calls of a layer are plain (`_plainly`). For recurrent layers, all or none: both
        sources have one name.
        """
        if not isinstance(self.modules[path], torch.nn.RNNBase):
            return self._plainly(path)
        return all(
            self._plainly(other)
            for other, module in self.modules.items()
            if isinstance(module, torch.nn.RNNBase)
        )

    def _plainly(self, path: str) -> bool:
        """Whether all calls of a layer of many options are as most are (`layer_of` has which)."""
        module = self.modules[path]
        if not isinstance(module, torch.nn.MultiheadAttention | torch.nn.RNNBase):
            return False
        own_calls = [
            module_call for module_call in calls(self.graph.root) if module_call.path == path
        ]
        batched = all(
            len(self.graph.facts[argument.inside].shape) == 3
            for module_call in own_calls
            for argument in module_call.arguments
        )
        if not own_calls or not module.batch_first or not batched:
            return False
        if isinstance(module, torch.nn.RNNBase):
            return (
                module.bias
                and not module.proj_size
                and module.mode != "RNN_RELU"
                and all(len(module_call.arguments) == 1 for module_call in own_calls)
            )
        return all(
            len(module_call.arguments) == len(attended(module_call, module)) == 3
            and [label_path(taken.label) for taken in module_call.taken] == [(0,)]
            for module_call in own_calls
        )

    def _elsewhere(self, path: str) -> bool:
        """Whether a module's weights are tied to those of one before it."""
        names_of = [f"{path}.{name}" for name in self.modules[path]._parameters]
        return any(self.first.get(key, key) != key for key in names_of)

    def dissolves(self, module_call: Call) -> bool:
        """Whether a call is written as part of the one around it.

        It is one of a Sequential, of a module without weights, or of one that stands elsewhere, whose weights
        are handed down.
        """
        if module_call.is_entry:
            return False
        if (
            module_call.path,
            module_call.number,
        ) in self.foreign or module_call.path in self.training.dropouts:
            return True
        module = self.modules[module_call.path]
        if self.layer(module_call.path) is not None:
            return False
        if isinstance(module, torch.nn.Sequential):
            return is_inlined(module)
        if self._elsewhere(module_call.path) and not module._modules and not module._buffers:
            keys = [f"{module_call.path}.{name}" for name in module._parameters]
            return all(self.first.get(key, key) != key for key in keys if key in self.first)
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
            return False
        plain = type(module).__module__.startswith("torch.nn.modules.")
        return plain or (
            len(module_call.body) <= 8
            and not any(isinstance(item, Call) for item in module_call.body)
        )


def is_inlined(module: torch.nn.Module) -> bool:
    """Whether a Sequential is written where it is called: it has no constructor or forward of its own."""
    return type(module).forward is torch.nn.Sequential.forward and not fills_itself(module)


def is_fused(module_call: Call) -> bool:
    """Whether a call runs torch's fused attention, which gives 0 for a row that sees nothing."""
    return any(
        isinstance(item, Op) and "scaled_dot_product" in item.target for item in module_call.body
    )


def attended(module_call: Call, module: torch.nn.Module) -> list[Given]:
    """Query, key and value of an attention's call, as far as it is given them."""
    arguments = {
        argument_name(argument.label, type(module).forward)[0]: argument
        for argument in module_call.arguments
    }
    return [arguments[name] for name in ("query", "key", "value") if name in arguments]


def _hint(side: int | Free) -> int:
    return side.hint if isinstance(side, Free) else side
