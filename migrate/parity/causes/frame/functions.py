"""Replace functions of torch while a layer runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.overrides import TorchFunctionMode

# Functions written in Python that call others by their names in torch.nn.functional.
_COMPOSED = ("multi_head_attention_forward",)
_INSIDE = ("linear", "softmax", "scaled_dot_product_attention", "pad")


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function of torch, or of a method of a tensor."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return the argument at this position or with this name."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else default

    def run(self) -> Any:
        """Run the call and return its result."""
        return self.function(*self.args, **self.kwargs)

    def but(self, position: int, name: str, value: Any) -> FunctionCall:
        """Copy the call with another value of an argument."""
        if position < len(self.args):
            args = (*self.args[:position], value, *self.args[position + 1 :])
            return FunctionCall(self.name, self.function, args, self.kwargs)
        return FunctionCall(self.name, self.function, self.args, {**self.kwargs, name: value})


Handler = Callable[[FunctionCall], Any]


class _Mode(TorchFunctionMode):
    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = named(func)
        if name in _COMPOSED:
            with ExitStack() as stack:
                for inner in _INSIDE:
                    original = getattr(F, inner)
                    stack.enter_context(mock.patch.object(F, inner, self._wrapped(inner, original)))
                return func(*args, **kwargs or {})
        return self._handler(FunctionCall(name, func, args, kwargs or {}))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._handler(FunctionCall(name, function, args, kwargs))


def named(function: Callable[..., Any]) -> str:
    """Name of a function without the underscores of operators and in-place methods."""
    return str(getattr(function, "__name__", "")).strip("_")


@contextmanager
def intercepted(handlers: Mapping[str, Handler], only: int | None = None) -> Iterator[None]:
    """Pass the calls of some functions to handlers.

    Args:
        handlers: handlers by the name of the function.
        only: number of the only call to pass, from 0; None: all.
    """
    seen = iter(range(1 << 30))

    def handle(call: FunctionCall) -> Any:
        handler = handlers.get(call.name)
        if handler is None or (only is not None and next(seen) != only):
            return call.run()
        return handler(call)

    with _Mode(handle):
        yield


@contextmanager
def watched(calls: list[FunctionCall]) -> Iterator[None]:
    """Record the calls of all functions."""

    def handle(call: FunctionCall) -> Any:
        calls.append(call)
        return call.run()

    with _Mode(handle):
        yield


@contextmanager
def handled(handler: Handler) -> Iterator[None]:
    """Pass the calls of all functions to a handler."""
    with _Mode(handler):
        yield
