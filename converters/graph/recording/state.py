"""Changes that a call makes in a module: buffers, weights, and attributes that the next call reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from converters.original_lines import line_of_original

# Attributes that torch itself keeps in every module.
_OF_TORCH = frozenset(vars(torch.nn.Module()))
_PLAIN = (torch.Tensor, bool, int, float, str, type(None))


class State(TorchDispatchMode):
    """The state of a module before calls: reports what they changed and where, and restores it.

    Weights are copied when the first operator writes to them, all else at once.

    Attributes:
        lines: path of a tensor → the line of the original that changed it in place: "net.py:12".
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.lines: dict[str, str] = {}
        self._module = module
        self._weights: dict[str, torch.Tensor] = {}
        self._written: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._owners: dict[str, tuple[torch.nn.Module, dict[str, Any], dict[str, Any]]] = {}
        self._storages: dict[int, str] = {}
        for path, owner in module.named_modules():
            prefix = f"{path}." if path else ""
            buffers = {name: _copied(buffer) for name, buffer in owner._buffers.items()}
            self._owners[prefix] = owner, buffers, _attributes(owner)
            for name, tensor in owner._parameters.items():
                if tensor is not None:
                    self._weights[prefix + name] = tensor
            for name, tensor in (owner._parameters | owner._buffers).items():
                if tensor is not None and tensor.numel():
                    self._storages.setdefault(tensor.untyped_storage().data_ptr(), prefix + name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        if schema.is_mutable:
            names = [argument.name for argument in schema.arguments]
            values = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
            for argument in schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._note(values.get(argument.name))
        return func(*args, **(kwargs or {}))

    def _note(self, written: Any) -> None:
        if not isinstance(written, torch.Tensor) or not written.numel():
            return
        path = self._storages.get(written.untyped_storage().data_ptr())
        if path is None:
            return
        self.lines.setdefault(path, line_of_original())
        weight = self._weights.get(path)
        if weight is not None and path not in self._written:
            self._written[path] = weight, weight.detach().clone()

    def changed(self) -> tuple[str, ...]:
        """Paths of the buffers and weights whose values changed."""
        paths = [path for path, (weight, old) in self._written.items() if not _same(weight, old)]
        for prefix, (owner, buffers, _) in self._owners.items():
            for name, old in buffers.items():
                now = owner._buffers.get(name)
                if old is not None and not _same(now, old[1]):
                    paths.append(prefix + name)
        return tuple(paths)

    def attributes(self) -> tuple[str, ...]:
        """Paths of the other tensors, numbers and collections that changed."""
        return tuple(
            prefix + name
            for prefix, (owner, _, old) in self._owners.items()
            for name, now in _attributes(owner).items()
            if name not in old or not _same(now[1], old[name][1])
        )

    def put_back(self, attributes: bool = True) -> None:
        """Restore the module.

        Args:
            attributes: whether to restore attributes that no checkpoint has, too.
        """
        with torch.no_grad():
            for weight, old in self._written.values():
                weight.copy_(old)
            for owner, buffers, plain in self._owners.values():
                for name, old in buffers.items():
                    saved = name not in owner._non_persistent_buffers_set
                    if old is not None and name in owner._buffers and (attributes or saved):
                        owner._buffers[name] = old[0]
                        old[0].copy_(old[1])
                if attributes:
                    _restore(owner, plain)


@contextmanager
def weights_stay(module: torch.nn.Module) -> Iterator[State]:
    """Restore the checkpointed state of a module; data that a call stores for the next call stays."""
    state = State(module)
    try:
        with state:
            yield state
    finally:
        state.put_back(attributes=False)


@contextmanager
def attributes_stay(module: torch.nn.Module) -> Iterator[None]:
    """Restore the plain attributes of a module and its submodules.

    torch.export leaves tensors without numbers in them where it fails after the forward has set them.
    """
    before = [(owner, _attributes(owner)) for owner in module.modules()]
    try:
        yield
    finally:
        with torch.no_grad():
            for owner, plain in before:
                _restore(owner, plain)


def _restore(owner: torch.nn.Module, plain: dict[str, tuple[Any, Any]]) -> None:
    """Restore the plain attributes of a module; attributes that are new are removed."""
    for name in _attributes(owner).keys() - plain.keys():
        del vars(owner)[name]
    for name, (object_, value) in plain.items():
        vars(owner)[name] = _refilled(object_, value)


def _copied(tensor: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    return None if tensor is None else (tensor, tensor.detach().clone())


def _attributes(owner: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    """Plain attributes of a module that are not torch's, each with its value."""
    kept: dict[str, tuple[Any, Any]] = {}
    for name, value in vars(owner).items():
        if name in _OF_TORCH:
            continue
        if _is_real(value):
            kept[name] = value, value.detach().clone()
        elif isinstance(value, _PLAIN):  # a tensor without numbers is identified by the object
            kept[name] = value, value
        elif type(value) in (list, dict, set):
            kept[name] = value, value.copy()
    return kept


def _refilled(object_: Any, value: Any) -> Any:
    """An attribute with its former content."""
    if _is_real(object_):
        object_.detach().copy_(value)
    elif isinstance(object_, list):
        object_[:] = value
    elif isinstance(object_, dict | set):
        object_.clear()
        object_.update(value)
    return object_


def _is_real(value: Any) -> bool:
    """Whether a value is a tensor with numbers: torch.export leaves others behind in attributes."""
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


def _same(value: Any, other: Any) -> bool:
    if _is_real(value) and _is_real(other):
        return value.shape == other.shape and torch.allclose(value, other, 0, 0, equal_nan=True)
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_same(value[key], other[key]) for key in value)
    if not isinstance(value, torch.Tensor) and isinstance(value, _PLAIN):
        return type(value) is type(other) and bool(value == other)
    return value is other
