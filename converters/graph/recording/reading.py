"""Which inputs a model reads in Python: sizes, counts and choices that rest on values."""

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

# Operators that give a number of Python, or as many elements as the values say.
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
    """Names of the integer inputs that are read, or what is computed of nothing but them.

    What a table of weights is looked up with, as token ids are, is not among them: a model that is fixed to
    it is of no use.
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
        except Exception:  # a way that is gone while exporting only; it is recorded without
            return ()
    return tuple(name for name in inputs if name in seen.read - seen.looked_up)


class _Values(TorchDispatchMode):
    """Follows the values that rest on integer inputs and numbers of Python alone."""

    def __init__(self, known: Any) -> None:
        super().__init__()
        self.known = known
        self.carried: Any = WeakIdKeyDictionary()  # inputs as they are given, or parts of them
        self.carried.update(known)
        self.read: set[str] = set()
        self.looked_up: set[str] = set()

    def note(self, value: Any) -> None:
        """A tensor is read."""
        self.read |= self.known.get(value, frozenset())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [one for one in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(one)]
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        truths = name == "index" and any(one.dtype == torch.bool for one in given[1:])
        if name in _READS or truths:
            for one in given:
                self.note(one)
        if name in _LOOKED_UP and given[0] not in self.known:
            for one in given[1:]:
                self.looked_up |= self.carried.get(one, frozenset())
        if given and (func.is_view or name in _COPIES):
            for one in pytree.tree_leaves(result):
                self.carried[one] = self.carried.get(given[0], frozenset())
        if all(one in self.known for one in given):
            names = frozenset().union(*(self.known[one] for one in given))
            for one in pytree.tree_leaves(result):
                if torch.is_tensor(one):
                    self.known[one] = names
        elif func._schema.is_mutable:
            self.known.pop(given[0], None)
        return result


class _Lists(TorchFunctionMode):
    """Sees `tolist` and `numpy`, which no operator stands for."""

    def __init__(self, values: _Values) -> None:
        super().__init__()
        self.values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.tolist, torch.Tensor.numpy):
            self.values.note(args[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def _as_if_exporting() -> Iterator[None]:
    """Models that ask whether they are exported take the way that they take then."""
    compiler: Any = torch.compiler
    names = [one for one in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(compiler, one)]
    before = {name: getattr(compiler, name) for name in names}
    for name in names:
        setattr(compiler, name, True)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(compiler, name, value)
