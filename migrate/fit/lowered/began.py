"""The moment at which a training step's forward pass began, by autograd's own count.

Autograd numbers its nodes in the order in which they are made. The first node of the graph that is
differentiated is the begin of the forward pass: what ran before it, an evaluation for instance, is no
part of the step.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

_NO_ORDER = 1 << 62  # the number of nodes that stand for leaves
# The moment at which each backward pass that is under way was called.
_UNDER_WAY: list[int] = []


def moment() -> int:
    """Number that autograd would give to a node now; during a backward pass, when that was called.

    A backward pass runs in threads of its own, and each thread counts from 0.
    """
    import torch

    if _UNDER_WAY:
        return _UNDER_WAY[-1]
    with torch.inference_mode(False), torch.enable_grad():
        node = (torch.zeros(1, device="cpu", requires_grad=True) * 1).grad_fn
    assert node is not None
    return int(node._sequence_nr())


class Began:
    """Record of when the forward pass of the running step began.

    Attributes:
        first: number of the first node that a backward pass has met since the last reset; None before.
        backward: the line that called that backward pass last, "" before.

    Args:
        line: gives the line of the script that is running.
    """

    def __init__(self, line: Callable[[], str] = str) -> None:
        self._line = line
        self.backward = ""
        self.first: int | None = None
        self._reset = 0
        self._seen = False

    def install(self) -> None:
        """Look at each graph before it is differentiated."""
        import torch

        for name in ("backward", "grad"):
            differentiate = getattr(torch.autograd, name)
            setattr(torch.autograd, name, self._watched(differentiate))

    def reset(self) -> None:
        """Begin a new step."""
        self.first, self._seen, self._reset = None, False, moment()

    def holds(self, at: int) -> bool:
        """Whether what ran at a moment belongs to the step, after its backward pass."""
        return self.first is None or at > self.first

    def has_begun(self) -> bool:
        """Whether a forward pass with gradients is under way on the device."""
        if not self._seen:
            self._seen = self.first is not None or any(
                number > self._reset for number in _numbers_alive()
            )
        return self._seen

    def _watched(self, differentiate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(differentiate)
        def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            roots = [tensors] if hasattr(tensors, "grad_fn") else list(tensors)
            first = min(_numbers(root.grad_fn for root in roots), default=None)
            if first is not None:
                self.backward = self._line()
                self.first = first if self.first is None else min(first, self.first)
            _UNDER_WAY.append(moment())
            try:
                return differentiate(tensors, *args, **kwargs)
            finally:
                _UNDER_WAY.pop()

        return watched


def _numbers(nodes: Iterator[Any]) -> Iterator[int]:
    """Yield the numbers of the nodes of a graph."""
    waiting, seen = list(nodes), set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if 0 <= (number := int(node._sequence_nr())) < _NO_ORDER:
            yield number
        waiting += [following for following, _ in node.next_functions]


def _numbers_alive() -> Iterator[int]:
    """Yield the numbers of nodes that made tensors of the device which are alive."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # objects that warn when their attributes are read
        for value in gc.get_objects():
            try:
                if (
                    isinstance(value, torch.Tensor)
                    and value.device.type == "xla"
                    and value.grad_fn is not None
                ):
                    yield int(value.grad_fn._sequence_nr())
            except (ReferenceError, RuntimeError):
                continue
