"""Layers of a torch model under torch_xla: kept while the pass is recorded, read together when it is over.

Reading a tensor inside a hook would cut the graph there: one execution a layer, and other numbers, as the
compiler fuses less. What is kept lies on the device until the pass is over, that of one pass at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from migrate.parity.sides.torch.capture.hooks import Written

Kept = tuple[str, int]


@dataclass(frozen=True)
class _Call:
    layer: str
    number: int
    order: int
    given: tuple[Kept, ...]
    outputs: tuple[Kept, ...]


class Later:
    """A store (`capture.torch.Store`) that reads nothing before `read`."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._calls: list[_Call] = []
        self._copies: list[Any] = []
        # The originals live as long as their ids are looked at: no other tensor can have one.
        self._known: dict[tuple[int, int], tuple[int, Any]] = {}

    def given(
        self, layer: str, number: int, tensors: Sequence[tuple[str, Any]]
    ) -> tuple[Kept, ...]:
        """See `Store`."""
        del layer, number
        return tuple(self._keep(path, tensor) for path, tensor in tensors)

    def call(
        self,
        layer: str,
        number: int,
        order: int,
        given: tuple[Kept, ...],
        outputs: Sequence[tuple[str, Any]],
    ) -> None:
        """See `Store`."""
        after = tuple(self._keep(path, tensor) for path, tensor in outputs)
        self._calls.append(_Call(layer, number, order, given, after))

    def read(self, written: Written, outputs: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Run the pass that was recorded, write its calls, forget them; give the outputs on the CPU."""
        values = fetched([*self._copies, *(tensor for _, tensor in outputs)])
        for one in self._calls:
            given, made = (
                [(path, values[at]) for path, at in kept] for kept in (one.given, one.outputs)
            )
            refs = written.given(one.layer, one.number, given)
            written.call(one.layer, one.number, one.order, refs, made)
        last = values[len(self._copies) :]
        self._forget()
        return [(path, tensor) for (path, _), tensor in zip(outputs, last, strict=True)]

    def _keep(self, path: str, tensor: Any) -> Kept:
        """Keep a tensor as it is now; later writes in place do not reach the copy."""
        key = id(tensor), tensor._version
        if key not in self._known:
            self._known[key] = len(self._copies), tensor
            self._copies.append(tensor.detach().clone())
        return path, self._known[key][0]


def fetched(tensors: Sequence[Any]) -> list[Any]:
    """The tensors on the CPU: those of XLA by one execution and one transfer together."""
    lazy = [tensor.detach() for tensor in tensors if tensor.device.type == "xla"]
    if not lazy:
        return [tensor.detach() for tensor in tensors]
    import torch_xla

    read = iter(torch_xla._XLAC._xla_get_cpu_tensors(lazy))
    return [next(read) if tensor.device.type == "xla" else tensor.detach() for tensor in tensors]
