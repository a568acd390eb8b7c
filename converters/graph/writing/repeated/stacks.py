"""Lists of layers whose weights are stacked, and their paths in the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from converters.graph.writing.model import Class
from converters.graph.writing.repeated.chains import elements
from converters.graph.writing.repeated.runs import Run


@dataclass(frozen=True)
class LayerStack:
    """A list of layers of which each run is one layer, or one group of layers, with stacked weights.

    Attributes:
        path: regular expression of the list's path in the model, with the numbers of the original's layers.
        runs: its runs. A single one with count 0 has as many layers as the configuration says.
    """

    path: str
    runs: tuple[Run, ...]


def stacks(
    classes: Sequence[Class], scanned: Mapping[tuple[str, str], tuple[Run, ...]]
) -> tuple[LayerStack, ...]:
    """The stacked lists of a model, the innermost first.

    Args:
        classes: the classes before any layer was scanned; the last is the model.
        scanned: class and attribute of each list → its runs.
    """
    known = {cls.name: cls for cls in classes}
    runs_by_path = {
        path: scanned[cls.name, attribute]
        for cls, attribute, path in _lists(known, classes[-1], "")
        if (cls.name, attribute) in scanned
    }
    return tuple(
        LayerStack(path, runs_by_path[path])
        for path in sorted(runs_by_path, key=lambda path: -path.count("/"))
    )


def _lists(known: Mapping[str, Class], cls: Class, path: str) -> Iterator[tuple[Class, str, str]]:
    """Class, attribute and path of each list of layers, below a module of this class too."""
    for statement in (node for each in cls.setup for node in ast.walk(each)):
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr=attribute)], value=value):
                at = f"{path}/{attribute}" if path else attribute
                if elements(value) is not None:
                    yield cls, attribute, at
                for layer, where in _layers(value, at):
                    if layer in known:
                        yield from _lists(known, known[layer], where)


def _layers(value: ast.expr, at: str) -> Iterator[tuple[str, str]]:
    """Class and path of each module that an expression makes."""
    layers = elements(value)
    if layers is not None:
        parts, length = layers
        for number, part in enumerate(parts):
            yield from _layers(part, f"{at}_{number}" if length is None else rf"{at}_\d+")
        return
    match value:
        case ast.Dict(keys=keys, values=values):
            for key, part in zip(keys, values, strict=True):
                if key is not None:
                    yield from _layers(part, f"{at}_{ast.literal_eval(key)}")
        case ast.Call(
            func=ast.Attribute(attr="Sequential") | ast.Name(id="Sequential"),
            args=[inner],
        ):
            yield from _layers(inner, f"{at}/layers")
        case ast.Call(func=ast.Name(id=name)):
            yield name, at
