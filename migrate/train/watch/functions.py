"""Functions of the script that its loss calls: each becomes a method of the step, and so of the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from migrate.train.watch.calls import MODULE, PLAIN, LiveCall, is_plain
from migrate.train.watch.steady import OF_EVERY_MODULE
from migrate.train.watch.values import changed, held_modules, is_data, leaves, names, snapshot

OBJECT, TENSORS, FIXED = "object", "tensors", "fixed"


@dataclass(frozen=True)
class PortedFunction:
    """A function of the script as a method of the step.

    Attributes:
        method: name of the method.
        qualified: qualified name of the function in the script.
        first: first line of its code.
        arguments: parameter → kind and value: ("module", the child of the step), ("object", its name in the
            statements), ("tensors", nested data), ("fixed", any other value).
        inputs: parameter and keys of each tensor → input of the method.
        function: the function; None in a record.
        result: the returned value, with `Output` in place of its tensors; None until it is known.
    """

    method: str
    qualified: str
    first: int
    arguments: Mapping[str, tuple[str, Any]]
    inputs: Mapping[tuple[str, tuple[Any, ...]], str] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    result: Any = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Recorded tensors by the names of the method's inputs."""
        return {
            self.inputs[name, path]: tensor
            for name, (kind, value) in self.arguments.items()
            if kind == TENSORS
            for path, tensor in leaves(value)
        }

    def recorded(self) -> PortedFunction:
        """The function as plain values, for the record."""
        arguments = {
            name: (kind, _described(kind, v)) for name, (kind, v) in self.arguments.items()
        }
        return PortedFunction(
            self.method, self.qualified, self.first, arguments, self.inputs, None, self.result
        )


@dataclass(frozen=True)
class Output:
    """Position of a tensor among the outputs of a method."""

    number: int


def step_functions(
    calls: Sequence[LiveCall],
    children: Mapping[str, nn.Module],
    objects: Mapping[str, Any],
    reserved: Sequence[str],
) -> list[PortedFunction]:
    """Choose one call of each public function that computes with tensors.

    Args:
        calls: calls in one run of the step.
        children: modules of the step by name.
        objects: objects that the statements name.
        reserved: names that no method can have.
    """
    chosen: dict[str, PortedFunction] = {}
    trains: dict[str, bool] = {}
    taken = set(reserved)
    for call in calls:
        if not _is_public(call.qualified):
            continue
        arguments = {name: _kind(v, children, objects) for name, v in call.arguments.items()}
        known = {name: kind for name, kind in arguments.items() if kind is not None}
        if known.get("self", ("", None))[0] == MODULE:
            continue  # it is a part of the model
        if len(known) != len(arguments):
            continue
        data = {name: v for name, (kind, v) in known.items() if kind == TENSORS}
        if not data:
            continue
        modules = [children[value] for kind, value in known.values() if kind == MODULE]
        is_trained = all(any(p.requires_grad for p in m.parameters()) for m in modules)
        if trains.get(call.qualified, False) or (call.qualified in chosen and not is_trained):
            continue
        method = chosen[call.qualified].method if call.qualified in chosen else ""
        method = method or _method_name(call.qualified, taken)
        taken.add(method)
        trains[call.qualified] = is_trained
        chosen[call.qualified] = PortedFunction(
            method, call.qualified, call.first, known, names(data), call.function
        )
    return list(chosen.values())


def run(
    function: PortedFunction,
    tensors: Mapping[str, torch.Tensor],
    modules: Mapping[str, Any],
    named: Any,
) -> Any:
    """Call a function with other tensors, and modules and objects of a copy of the step.

    Args:
        function: the function.
        tensors: tensors by input.
        modules: children of the step.
        named: gives the object of a name.
    """
    values: dict[str, Any] = {}
    for name, (kind, value) in function.arguments.items():
        if kind == MODULE:
            values[name] = modules[value]
        elif kind == OBJECT:
            values[name] = named(value)
        elif kind == TENSORS:
            values[name] = changed(value, _from(function, name, tensors))
        else:
            values[name] = value
    assert function.function is not None
    with numbers_stay_tensors():
        return function.function(**values)


def _from(
    function: PortedFunction, name: str, tensors: Mapping[str, torch.Tensor]
) -> Callable[[tuple[Any, ...], torch.Tensor], torch.Tensor]:
    return lambda path, tensor: tensors[function.inputs[name, path]]


def outputs(result: Any) -> tuple[Any, list[torch.Tensor]] | None:
    """A result with `Output` for its tensors, and the tensors; None if it holds other objects."""
    tensors: list[torch.Tensor] = []

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Output(len(tensors) - 1)
        if type(value) in (tuple, list):
            return type(value)(map(described, value))
        if type(value) is dict and all(type(key) is str for key in value):
            return {key: described(item) for key, item in value.items()}
        if is_plain(value):
            return value
        raise TypeError(type(value).__name__)

    try:
        shape = described(result)
    except TypeError:
        return None
    return (shape, tensors) if tensors else None


@contextmanager
def numbers_stay_tensors() -> Iterator[None]:
    """Let `tensor.item()`, which scripts call for their logs, return the tensor."""
    original = torch.Tensor.item
    torch.Tensor.item = lambda self: self
    try:
        yield
    finally:
        torch.Tensor.item = original


def _kind(
    value: Any, children: Mapping[str, nn.Module], objects: Mapping[str, Any]
) -> tuple[str, Any] | None:
    for name, module in children.items():
        if value is module:
            return MODULE, name
    for name, known in objects.items():
        if value is known:
            return OBJECT, name
    if isinstance(value, nn.Module):
        return None if any(True for _ in value.parameters()) else (FIXED, value)
    if is_data(value):
        return TENSORS, snapshot(value)
    if next(held_modules(value), None) is not None:
        return None
    return FIXED, value


def _described(kind: str, value: Any) -> Any:
    """A value for the record: of tensors nothing, of other objects the plain attributes."""
    if kind == TENSORS:
        return None
    if kind != FIXED or is_plain(value):
        return value
    unset = OF_EVERY_MODULE if isinstance(value, nn.Module) else ()
    fields = {
        name: v
        for name, v in getattr(value, "__dict__", {}).items()
        if is_plain(v) and name not in unset
    }
    return Attributes(fields)


@dataclass(frozen=True)
class Attributes:
    """Plain attributes of an object."""

    values: Mapping[str, Any]


def _is_public(qualified: str) -> bool:
    *owner, name = qualified.split(".")
    special = owner and name in ("__call__", "forward")
    return "<locals>" not in qualified and (bool(special) or not name.startswith("_"))


def _method_name(qualified: str, taken: set[str]) -> str:
    *owners, name = qualified.split(".")
    owner = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", owners[-1]).lower() if owners else ""
    if name in ("__call__", "forward"):
        name = owner
    if name in taken:
        name = f"{owner}_{name}" if owner else f"{name}_of_script"
    return name


__all__ = ["FIXED", "MODULE", "OBJECT", "PLAIN", "TENSORS", "Output", "PortedFunction"]
