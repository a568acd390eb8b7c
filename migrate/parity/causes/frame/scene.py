"""Layer as a pattern sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler, handled, intercepted
from migrate.parity.causes.frame.replay import Replay
from migrate.parity.sides.torch.capture.tree import call_leaves

_MANY = 8


@dataclass(frozen=True)
class ScenePart:
    """Module that is computed in the replays."""

    name: str
    module: Any


@dataclass(frozen=True)
class Scene:
    """Layer that diverges.

    Attributes:
        model: the truth's model.
        name: name of the layer; "" is the model itself.
        replay: replay of the layer.
        settings, truth_settings: settings of the side's layer, and of the truth's.
        side: name of the side in messages.
    """

    model: nn.Module
    name: str
    replay: Replay
    settings: Mapping[str, Any]
    truth_settings: Mapping[str, Any]

    @property
    def target(self) -> Any:
        """The layer."""
        return self.replay.target

    @property
    def parts(self) -> tuple[ScenePart, ...]:
        """The layer, and the modules in it that have no partner."""
        parts = [ScenePart(self.name or "the model", self.target)]
        for name, module in self.target.named_modules():
            full = f"{self.name}.{name}".lstrip(".")
            inside = (
                paired
                for paired in self.replay.inside
                if full == paired or full.startswith(f"{paired}.")
            )
            if name and next(inside, None) is None:
                parts.append(ScenePart(full, module))
        return tuple(parts)

    def groups(self, keep: Callable[[Any], bool]) -> Iterator[tuple[ScenePart, ...]]:
        """Yield the selected parts: each alone, then all together."""
        kept = tuple(part for part in self.parts if keep(part.module))
        if len(kept) > 1:
            yield kept
        for part in kept[:_MANY]:
            yield (part,)

    def weights(
        self, keep: Callable[[Any, str, torch.Tensor], bool]
    ) -> Iterator[tuple[ScenePart, str]]:
        """Yield the selected parameters of the parts; `keep` gets module, name and tensor."""
        for part in self.parts:
            for name, tensor in part.module.named_parameters(recurse=False):
                if keep(part.module, name, tensor):
                    yield part, name

    def calls(self, *names: str) -> list[FunctionCall]:
        """Return the calls of these functions that the layer itself makes."""
        return [call for call in self.replay.calls if call.name in names]

    def replaced(
        self, make: Callable[[], Mapping[str, Handler]], each: bool = True
    ) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Any]]]]:
        """Yield changes that replace functions: in all of their calls, then in a single call.

        Args:
            make: returns new handlers for each run, by name of the function.
            each: whether to replace single calls too.

        Yields:
            Words for the replaced calls, and the change.
        """
        count = len(self.calls(*make()))
        if not count:
            return
        yield "", lambda: intercepted(make())
        if each and count > 1:
            for only in range(min(count, _MANY)):
                yield f" (call {only + 1} of {count})", partial(_one, make, only)

    def intercepted(self, handlers: Mapping[str, Handler]) -> AbstractContextManager[None]:
        """Pass the calls of these functions to their handlers, which were created for this run."""
        return intercepted(handlers)

    def every(self, handler: Handler) -> AbstractContextManager[None]:
        """Pass the calls of all functions to a handler."""
        return handled(handler)

    def given(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the layer's arguments."""
        yield from call_leaves(*self.replay.arguments)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the available tensors: arguments of the layer, and outputs of the layers inside."""
        for path, tensor in self.given():
            yield f"argument {path}", tensor
        for name, number, path, tensor in self.replay.outputs():
            yield name + (f" ({number})" if number else "") + (f" {path}" if path else ""), tensor


def _one(make: Callable[[], Mapping[str, Handler]], only: int) -> AbstractContextManager[None]:
    return intercepted(make(), only)
