"""Pickled `nn.Module` as its state dict and its layers.

`torch.save(model)` writes the attributes of every module: its parameters, buffers and children, and
the settings of the layers (`groups`, `num_heads`, `eps`). The classes are not needed to read them,
and no code of them runs: no `__setstate__`, no hook. TorchScript archives hold the same objects
with less information. There, tensors and children are plain attributes, and the settings are in the
code, which is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from converters.checkpoint.inert.records import PickleError, Record, printable
from converters.checkpoint.lazy import LazyTensor

SCRIPTED = "__torch__."
_DEEPEST = 100
_MOST = 50_000
_MOST_VALUES = 16  # maximum number of values of a setting
_LARGEST = 1 << 53
_REGISTERED = ("_parameters", "_buffers", "_modules")
# Wrappers that forward everything to the module inside: class → name of the inner module.
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


@dataclass(frozen=True)
class RecordedModule:
    """Module as recorded in a file.

    Attributes:
        kind: the full name of its class ("torch.nn.modules.conv.Conv2d").
        settings: its plain attributes.
        parameters: the names of its direct parameters, including absent ones.
        buffers: the names of its direct buffers.
        transient: the buffers that are not in the state dict.
        children: the names of its children, in order.
        hooks: hooks that compute a weight before each call: (class, settings).
        complete: whether all settings are recorded (not in TorchScript).
    """

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    transient: frozenset[str] = frozenset()
    children: tuple[str, ...] = ()
    hooks: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    complete: bool = True


def is_module(value: Any) -> bool:
    """Whether the value is the record of an `nn.Module`, or of a scripted module."""
    if type(value) is not Record:
        return False
    attributes = value.attributes
    if value.name.startswith(SCRIPTED):
        return type(value.state) is dict
    return all(type(attributes.get(name)) is dict for name in _REGISTERED)


def read_module(value: Record) -> tuple[dict[str, Any], dict[str, RecordedModule]]:
    """Return the state dict of a module, and its modules by path ("" for the module itself).

    Raises:
        PickleError: the module is nested too deeply, contains itself, or is invalid.
    """
    tensors: dict[str, Any] = {}
    modules: dict[str, RecordedModule] = {}
    # One iterator per open module: recursion would exhaust Python's stack.
    way: list[Iterator[tuple[str, Record]]] = [iter([("", value)])]
    while way:
        step = next(way[-1], None)
        if step is None:
            way.pop()
            continue
        path, record = step
        record = _unwrapped(record)
        if len(way) > _DEEPEST or len(modules) == _MOST:
            raise PickleError("its modules are nested too deeply, or have no end")
        module, direct, children = _read(record)
        modules[path] = module
        prefix = f"{path}." if path else ""
        tensors.update((prefix + name, tensor) for name, tensor in direct.items())
        way.append(iter([(prefix + name, child) for name, child in children.items()]))
    return tensors, modules


def _unwrapped(record: Record) -> Record:
    for _ in range(_DEEPEST):
        name = _WRAPPERS.get(record.name.rpartition(".")[2])
        children = record.attributes.get("_modules")
        if name is None or not isinstance(children, dict) or list(children) != [name]:
            return record
        inner = children[name]
        if not is_module(inner):
            return record
        record = inner
    raise PickleError("its modules are nested too deeply, or have no end")


_Read = tuple[RecordedModule, dict[str, Any], dict[str, Record]]


def _read(record: Record) -> _Read:
    """Return a module, the tensors of the state dict that it holds directly, and its children."""
    if record.name.startswith(SCRIPTED):
        return _read_scripted(record)
    attributes = record.attributes
    parameters, buffers, modules = (_named(attributes[name]) for name in _REGISTERED)
    left_out = attributes.get("_non_persistent_buffers_set")
    transient = frozenset(left_out) if isinstance(left_out, set | frozenset) else frozenset()
    children = {name: child for name, child in modules.items() if child is not None}
    for name, child in children.items():
        if not is_module(child):
            raise PickleError(f"{name[:80]!a} of its modules is none")
    direct = parameters | {name: it for name, it in buffers.items() if name not in transient}
    module = RecordedModule(
        printable(record.name),
        {name: value for name, value in attributes.items() if _is_setting(value)},
        tuple(parameters),
        tuple(buffers),
        frozenset(name for name in transient if type(name) is str),
        tuple(children),
        tuple(_hooks(attributes.get("_forward_pre_hooks"))),
    )
    return module, {name: it for name, it in direct.items() if it is not None}, children


def _read_scripted(record: Record) -> _Read:
    direct = {name: it for name, it in record.attributes.items() if isinstance(it, LazyTensor)}
    children = {name: it for name, it in record.attributes.items() if is_module(it)}
    kind = ".".join(
        step
        for step in record.name.removeprefix(SCRIPTED).split(".")
        if not step.startswith("___torch_mangle")
    )
    module = RecordedModule(
        printable(kind), {}, tuple(direct), children=tuple(children), complete=False
    )
    return module, direct, children


def _named(registered: dict[Any, Any]) -> dict[str, Any]:
    for name in registered:
        if type(name) is not str or not name or "." in name:
            raise PickleError("a module has a tensor or child without a name")
    return registered


def _is_setting(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return len(value) <= _MOST_VALUES and all(
            not isinstance(item, tuple | list) and _is_setting(item) for item in value
        )
    if type(value) is int:
        return -_LARGEST < value < _LARGEST
    return value is None or type(value) in (bool, float, str)


def _hooks(registered: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the hooks that are objects, such as weight_norm and spectral_norm of torch.nn.utils."""
    if not isinstance(registered, dict):
        return
    for hook in list(registered.values())[:_MOST_VALUES]:
        if type(hook) is Record:
            settings = {
                name: value for name, value in hook.attributes.items() if _is_setting(value)
            }
            yield printable(hook.name), settings


class WithModules(dict[str, Any]):
    """State dict with the recorded modules that it belongs to."""

    def __init__(self, tensors: Mapping[str, Any], modules: Mapping[str, RecordedModule]) -> None:
        super().__init__(tensors)
        self.modules = modules
