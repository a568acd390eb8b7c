"""Layers of a torch model under torch_xla: kept while the pass is recorded, read together at its end.

Reading a tensor inside a hook would cut the graph there: one execution for each layer, and other numbers,
because the compiler fuses less. Kept tensors stay on the device until the pass is over, one pass at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from migrate.parity.sides.torch.capture.hooks import WritingStore

Kept = tuple[str, int]


@dataclass(frozen=True)
class _Call:
    layer: str
    number: int
    order: int
    arguments: tuple[Kept, ...]
    outputs: tuple[Kept, ...]


class Later:
    """Store (`capture.torch.Store`) that reads nothing before `read`."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._calls: list[_Call] = []
        self._copies: list[Any] = []
        # The originals stay alive while their ids are compared: no other tensor can have the same id.
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
        arguments: tuple[Kept, ...],
        outputs: Sequence[tuple[str, Any]],
    ) -> None:
        """See `Store`."""
        after = tuple(self._keep(path, tensor) for path, tensor in outputs)
        self._calls.append(_Call(layer, number, order, arguments, after))

    def read(
        self, written: WritingStore, outputs: Sequence[tuple[str, Any]]
    ) -> list[tuple[str, Any]]:
        """Run the recorded pass, write its calls and forget them; return the outputs on the CPU."""
        values = fetched([*self._copies, *(tensor for _, tensor in outputs)])
        for call in self._calls:
            arguments, results = (
                [(path, values[at]) for path, at in kept] for kept in (call.arguments, call.outputs)
            )
            refs = written.given(call.layer, call.number, arguments)
            written.call(call.layer, call.number, call.order, refs, results)
        last = values[len(self._copies) :]
        self._forget()
        return [(path, tensor) for (path, _), tensor in zip(outputs, last, strict=True)]

    def _keep(self, path: str, tensor: Any) -> Kept:
        """Keep a copy of a tensor; later writes in place do not change the copy."""
        key = id(tensor), tensor._version
        if key not in self._known:
            self._known[key] = len(self._copies), tensor
            self._copies.append(tensor.detach().clone())
        return path, self._known[key][0]


def fetched(tensors: Sequence[Any]) -> list[Any]:
    """Copy tensors to the CPU: tensors of XLA with a single execution and transfer."""
    lazy = [tensor.detach() for tensor in tensors if tensor.device.type == "xla"]
    if not lazy:
        return [tensor.detach() for tensor in tensors]
    import torch_xla

    read = iter(torch_xla._XLAC._xla_get_cpu_tensors(lazy))
    return [next(read) if tensor.device.type == "xla" else tensor.detach() for tensor in tensors]
