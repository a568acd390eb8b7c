"""Inputs that a model reads in Python: sizes, counts and choices that depend on values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

# Operators that give a Python number, or a number of elements that depends on values.
_READS = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
    "_unique2",
}
_LOOKED_UP = {"embedding", "index_select"}
_COPIES = {"_to_copy", "clone", "lift_fresh"}


def read_inputs(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Names of the integer inputs that are read, or from which alone a read value is computed.

    Indices into a table of weights, such as token ids, are left out: a model fixed to certain token
    ids is of no use.
    """
    known: Any = WeakIdKeyDictionary()
    for name, value in inputs.items():
        if not value.is_floating_point() and not value.is_complex():
            known[value] = frozenset({name})
    seen = _Values(known)
    with _as_if_exporting(), torch.no_grad(), warnings.catch_warnings(), _Lists(seen), seen:
        warnings.simplefilter("ignore")
        try:
            module(**inputs)
        except Exception:  # an attribute that is missing while exporting; it is recorded without
            return ()
    return tuple(name for name in inputs if name in seen.read - seen.looked_up)


class _Values(TorchDispatchMode):
    """Tracks the values that depend only on integer inputs and Python numbers."""

    def __init__(self, known: Any) -> None:
        super().__init__()
        self.known = known
        self.carried: Any = WeakIdKeyDictionary()  # inputs unchanged, or parts of them
        self.carried.update(known)
        self.read: set[str] = set()
        self.looked_up: set[str] = set()

    def note(self, value: Any) -> None:
        """Record that a tensor is read."""
        self.read |= self.known.get(value, frozenset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        truths = name == "index" and any(index.dtype == torch.bool for index in tensors[1:])
        if name in _READS or truths:
            for tensor in tensors:
                self.note(tensor)
        if name in _LOOKED_UP and tensors[0] not in self.known:
            for tensor in tensors[1:]:
                self.looked_up |= self.carried.get(tensor, frozenset())
        if tensors and (func.is_view or name in _COPIES):
            for tensor in pytree.tree_leaves(result):
                self.carried[tensor] = self.carried.get(tensors[0], frozenset())
        if all(source in self.known for source in tensors):
            names = frozenset().union(*(self.known[source] for source in tensors))
            for tensor in pytree.tree_leaves(result):
                if torch.is_tensor(tensor):
                    self.known[tensor] = names
        elif func._schema.is_mutable:
            self.known.pop(tensors[0], None)
        return result


class _Lists(TorchFunctionMode):
    """Catches `tolist` and `numpy`, which are no operators."""

    def __init__(self, values: _Values) -> None:
        super().__init__()
        self.values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.tolist, torch.Tensor.numpy):
            self.values.note(args[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def _as_if_exporting() -> Iterator[None]:
    """Make models that ask whether they are exported choose their export branch."""
    compiler: Any = torch.compiler
    names = [
        flag for flag in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(compiler, flag)
    ]
    before = {name: getattr(compiler, name) for name in names}
    for name in names:
        setattr(compiler, name, True)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(compiler, name, value)
