"""Training in what is written: dropouts as layers, and which modules are told `deterministic`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from converters.graph.draws import Modes, draws, is_dropout
from converters.graph.expression import SettingFloat, call, code
from converters.graph.ir import Call, Graph, calls
from converters.graph.writing.layers import Layer
from converters.graph.writing.original.settings import Settings
from converters.layers.flax_call import DETERMINISTIC, RNGS, Api, FlaxCall, num_features

# The argument that tells a model and its modules whether they are trained, and what it is.
MODE = "deterministic"
_BATCH_NORM = "converters.modules.{api}.modes.BatchNorm"


def mode_keyword() -> ast.keyword:
    """`deterministic=deterministic`."""
    return ast.keyword(MODE, ast.Name(MODE, ast.Load()))


@dataclass(frozen=True)
class DropoutLayer(Layer):
    """A module of the original that does nothing but drop: Flax's Dropout.

    Attributes:
        rate: the share that is dropped.
        axes: that are dropped together, as the tensor lies; known once it is called.
    """

    rate: float = 0.0
    axes: list[tuple[int, ...]] = field(default_factory=list)

    def made(self, settings: Settings, typed: bool = False) -> ast.expr:
        """See `Layer`; a dropout has no dtype."""
        names = ("p", *vars(self.module))
        held = {name: getattr(self.module, name, None) for name in names}
        attributes = [
            name for name, value in held.items() if value is not False and value == self.rate
        ]
        rate: Any = self.rate
        if attributes:
            setting = settings.of_layer(self.module, attributes[0], self.rate)
            # Many settings are 0. So is the first rate of those that grow from module to module.
            listed = isinstance(setting, SettingFloat) and setting.holder
            rate = setting if self.rate or listed else rate
        return dropout_made(rate, self.axes[0] if self.axes else ())


def dropout_made(rate: Any, axes: tuple[int, ...]) -> ast.expr:
    """The expression that makes a dropout."""
    return call("nn.Dropout", rate, **({"broadcast_dims": axes} if axes else {}))


class Training:
    """Training behavior of a graph.

    Args:
        graph: the graph of both modes.
        modules: path → module of the original.
        modes: differences of training.
        api: API of Flax.
    """

    def __init__(
        self,
        graph: Graph,
        modules: Mapping[str, torch.nn.Module],
        modes: Modes,
        api: Api = "linen",
    ) -> None:
        self.modes, self.modules, self.api = modes, modules, api
        self.dropouts: dict[str, DropoutLayer] = {}
        # What an evaluation alone draws does not depend on the mode.
        drawing = [] if modes.refused else filter(draws, calls(graph.root))
        self.drawing = {module_call.path for module_call in drawing}
        for module_call in calls(graph.root):
            for item in module_call.body:
                if is_dropout(item) and item.arguments[3]:
                    path, rate = item.arguments[3], item.arguments[1]
                    flax = FlaxCall("flax.linen.Dropout", {}, options={MODE: DETERMINISTIC})
                    layer = DropoutLayer(modules[path], flax, True, rate)
                    self.dropouts.setdefault(path, layer)
        # Paths of Sequentials whose members are told the mode.
        self.sequentials: set[str] = set()
        self._told: set[type] | None = None

    @property
    def any(self) -> bool:
        """Whether training is something else than evaluation."""
        return bool(self.drawing or self.modes.statistics or self.modes.drawn)

    def layer(self, path: str, layer: Layer) -> Layer:
        """A layer as it is where it computes otherwise in training."""
        if path in self.modes.statistics:
            return replace(layer, flax=_batch_norm(layer.module, self.api), trains=True)
        return replace(layer, trains=True) if path in self.drawing else layer

    def is_told(
        self,
        cls: type,
        root: Call,
        dissolves: Callable[[Call], bool],
        layer_of: Callable[[str], Layer | None],
    ) -> bool:
        """Whether modules of a class of the original are told the mode.

        Args:
            cls: the class.
            root: the call of the model.
            dissolves: whether a call is written as part of the one around it.
            layer_of: the layer of Flax's that a module is.
        """
        if not self.any:
            return False
        if self._told is None:
            self._told = self._find(root, dissolves, layer_of)
        return cls in self._told

    def _find(
        self,
        root: Call,
        dissolves: Callable[[Call], bool],
        layer_of: Callable[[str], Layer | None],
    ) -> set[type]:
        """The classes in whose calls something differs, or that call such."""
        classes: set[type] = set()
        callers: dict[type, set[type]] = defaultdict(set)

        def walk(outer: Call, owner: type) -> None:
            for item in outer.body:
                if not isinstance(item, Call):
                    if draws(item):
                        classes.add(owner)
                elif item.is_entry or dissolves(item):
                    walk(item, owner)
                elif (layer := layer_of(item.path)) is not None:
                    if layer.trains:
                        classes.add(owner)
                else:
                    cls = type(self.modules[item.path])
                    callers[cls].add(owner)
                    walk(item, cls)

        walk(root, type(self.modules[""]))
        todo = list(classes)
        while todo:
            for owner in callers[todo.pop()] - classes:
                classes.add(owner)
                todo.append(owner)
        return classes


def _batch_norm(layer: Any, api: Api) -> FlaxCall:
    shown = {"use_scale": layer.weight is not None, "use_bias": layer.bias is not None}
    settings: dict[str, Any] = {name: False for name, there in shown.items() if not there}
    settings |= {"rngs": RNGS} if api == "nnx" else {}
    return FlaxCall(
        _BATCH_NORM.format(api=api),
        num_features(api, layer.num_features),
        {"epsilon": layer.eps, "momentum": layer.momentum, **settings},
        # In nnx `model.eval()` and `model.train()` say it.
        options={MODE: DETERMINISTIC} if api == "linen" else {},
        channels_last=True,
    )


def in_mode(result: ast.expr, of_mode: Mapping[str, bool]) -> ast.expr:
    """The model's result, in which outputs of one mode only are None in the other mode."""
    if not of_mode or not isinstance(result, ast.Dict):
        return result
    values: list[ast.expr] = []
    for key, value in zip(result.keys, result.values, strict=True):
        name = key.value if isinstance(key, ast.Constant) else ""
        if name in of_mode:
            pair = {"v": value, "m": code(MODE)}
            text = "None if {m} else {v}" if of_mode[str(name)] else "{v} if {m} else None"
            value = code(text, **pair)
        values.append(value)
    return ast.Dict(result.keys, values)


def refusal(reason: str) -> ast.stmt:
    """The statement with which a model refuses training that the port does not have."""
    raised = code("NotImplementedError({why})", why=f"training is not in this port: {reason}")
    return ast.If(code(f"not {MODE}"), [ast.Raise(raised, None)], [])
