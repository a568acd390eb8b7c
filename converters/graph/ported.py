"""The stages of a port, one after the other."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from converters.graph.expression import call, code
from converters.graph.ir import COMPUTE, Free, Graph
from converters.graph.recording.group import group
from converters.graph.recording.masks import broadcast_masks
from converters.graph.recording.trace import Trace, trace
from converters.graph.writing import linen
from converters.graph.writing.classes import classes
from converters.graph.writing.draft import Drafter, Missing
from converters.graph.writing.model import Class, Model
from converters.graph.writing.patterns import plain


@dataclass(frozen=True)
class Argument:
    """An input of the port: numpy's name of its dtype; sides are integers, or names where they are free.

    `fixed`: it holds for the values of the recording only.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    fixed: bool = False


@dataclass(frozen=True)
class Port:
    """A ported model.

    Attributes:
        modeling: the source of `modeling.py`; it reads its sizes by `from .config import …`.
        config: the source of `config.py`.
        model_class: the class to make: `model_class(config_class())`.
        config_class: the dataclass of its sizes.
        inputs: what it is called with, by name.
        free: which sides of the inputs may be others.
        baked: what was fixed when the model was recorded.
        notes: what else to know.
        missing: operators without a lowering; in the source functions stand for them that raise.
        origin: class, file and first line of the originals.
        constants: arrays that go into the file of weights beside them, by path ("buffers/…").
        same_dtype: why its source does not follow the dtype of its weights; "" if it does.
    """

    modeling: str
    config: str
    model_class: str
    config_class: str
    inputs: tuple[Argument, ...]
    free: tuple[str, ...] = ()
    baked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    origin: tuple[tuple[str, str, int], ...] = ()
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)
    same_dtype: str = ""


def port(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> Port:
    """Write a torch model in Flax.

    Args:
        module: the model; it is put into `eval()`.
        inputs: what its forward is called with, by name; the shapes are examples.

    Raises:
        GraphError: it cannot be recorded, or has a form that no port has.
    """
    with broadcast_masks():
        recorded = trace(module, inputs)
    found = group(recorded)
    constants = _tensors(recorded) | dict(found.constants)
    modules = dict(module.named_modules(remove_duplicate=False))
    graph = plain(found, modules, constants)
    drafter = Drafter(graph, module, constants)
    model = classes(drafter)
    _demand(model.classes[-1], graph)
    name = model.classes[-1].name
    config = f"{name.removesuffix('Model')}Config"
    title = f"{name} in Flax, ported from {type(module).__module__}."
    missing = tuple({(one.op, one.path, one.line): one for one in drafter.missing}.values())
    return Port(
        modeling=linen.modeling(
            model, config, title, drafter.functions, drafter.classes_of_ours(), drafter.stubs
        ),
        config=linen.configuration(model, config, f"The sizes of {name}."),
        model_class=name,
        config_class=config,
        inputs=_inputs(graph),
        free=_free(graph),
        baked=(*drafter.baked, *(f"{name}: {values}" for name, values in graph.fixed.items())),
        notes=(*recorded.notes, *_dtypes_note(recorded)),
        missing=missing,
        origin=_origin(model),
        constants=_constants(drafter),
        same_dtype=recorded.same_dtype,
        stages={"graph.txt": str(found), "plain.txt": str(graph)},
    )


def _demand(cls: Class, graph: Graph) -> None:
    """What the model does first: it refuses other values of what the recording fixed."""
    checks = [
        ast.Expr(call("demand_recorded", name, code(name), values))
        for name, values in graph.fixed.items()
    ]
    cls.methods["__call__"].body[:0] = checks


def _dtypes_note(recorded: Trace) -> list[str]:
    why = recorded.same_dtype
    return [f"its classes have no `dtype`: {why}"] if why else []


def _tensors(recorded: Trace) -> dict[str, Any]:
    program = recorded.program
    found: dict[str, Any] = {}
    for key, value in (*program.state_dict.items(), *program.constants.items()):
        found[key.removeprefix("model.")] = value
    return found


# What free sides are called, by their axis: only inputs of fewer than four axes have any but the first free.
_SIDES = ("batch", "length", "features", "depth", "height", "width")


def _inputs(graph: Graph) -> tuple[Argument, ...]:
    made = []
    for name, number in graph.inputs:
        fact = graph.facts[number]
        shape = tuple(
            _SIDES[axis] if isinstance(side, Free) else side for axis, side in enumerate(fact.shape)
        )
        narrow = graph.narrow is not None and fact.dtype == COMPUTE
        dtype = str(torch.float32 if narrow else fact.dtype).removeprefix("torch.")
        made.append(Argument(name, dtype, shape, name in graph.fixed))
    return tuple(made)


def _free(graph: Graph) -> tuple[str, ...]:
    made = []
    for name, number in graph.inputs:
        sides = [
            f"axis {axis}"
            for axis, side in enumerate(graph.facts[number].shape)
            if isinstance(side, Free)
        ]
        if sides:
            made.append(f"{name}: {', '.join(sides)}")
    return tuple(made)


def _origin(model: Model) -> tuple[tuple[str, str, int], ...]:
    made = []
    for cls in model.classes:
        try:
            file = inspect.getsourcefile(cls.origin) or ""
            line = inspect.getsourcelines(cls.origin)[1]
        except (OSError, TypeError):
            file, line = "", 0
        made.append((cls.origin.__name__, file, line))
    return tuple(dict.fromkeys(made))


def _constants(drafter: Drafter) -> dict[str, np.ndarray[Any, Any]]:
    """Buffers that no checkpoint has, which the port reads."""
    return dict(drafter.stored().items())
