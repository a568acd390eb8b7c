"""The stages of a port, one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from converters.graph import Argument, Port, linen
from converters.graph.classes import Model, classes
from converters.graph.draft import Drafter
from converters.graph.group import group
from converters.graph.ir import Free, Graph
from converters.graph.trace import Trace, trace


def assemble(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], allow_stubs: bool
) -> Port:
    """See `converters.graph.port`."""
    recorded = trace(module, inputs)
    graph = group(recorded)
    drafter = Drafter(graph, module, _tensors(recorded))
    model = classes(drafter)
    name = model.classes[-1].name
    config = f"{name.removesuffix('Model')}Config"
    title = f"{name} in Flax, ported from {type(module).__module__}."
    missing = tuple({(one.op, one.path, one.line): one for one in drafter.missing}.values())
    return Port(
        modeling=linen.modeling(model, config, title, drafter.functions, drafter.classes_of_ours()),
        config=linen.configuration(model, config, f"The sizes of {name}."),
        model_class=name,
        config_class=config,
        inputs=_inputs(graph),
        free=_free(graph),
        notes=recorded.notes,
        missing=missing,
        origin=_origin(model),
        constants=_constants(drafter),
        stages={"graph.txt": str(graph)},
    )


def _tensors(recorded: Trace) -> dict[str, Any]:
    program = recorded.program
    found: dict[str, Any] = {}
    for key, value in (*program.state_dict.items(), *program.constants.items()):
        found[key.removeprefix("model.")] = value
    return found


def _inputs(graph: Graph) -> tuple[Argument, ...]:
    names: dict[Any, str] = {}
    made = []
    for name, number in graph.inputs:
        fact = graph.facts[number]
        shape = tuple(
            names.setdefault(
                side.expression, ("batch", "length", "width", "depth")[min(len(names), 3)]
            )
            if isinstance(side, Free)
            else side
            for side in fact.shape
        )
        made.append(Argument(name, str(fact.dtype).removeprefix("torch."), shape))
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
