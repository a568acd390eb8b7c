"""What a pattern sees of a layer."""

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
class Part:
    """A module that computes for itself in the replays."""

    name: str
    module: Any


@dataclass(frozen=True)
class Scene:
    """A layer that parts.

    Attributes:
        model: the truth's.
        name: the layer's; "" the model itself.
        replay: of it.
        settings, truth_settings: the side's, and the truth's.
        side: the word for the side.
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
    def parts(self) -> tuple[Part, ...]:
        """The layer, and the modules in it that have no partner."""
        found = [Part(self.name or "the model", self.target)]
        for name, module in self.target.named_modules():
            full = f"{self.name}.{name}".lstrip(".")
            inside = (
                one for one in self.replay.inside if full == one or full.startswith(f"{one}.")
            )
            if name and next(inside, None) is None:
                found.append(Part(full, module))
        return tuple(found)

    def groups(self, keep: Callable[[Any], bool]) -> Iterator[tuple[Part, ...]]:
        """The parts that are kept: each alone, and all together."""
        kept = tuple(part for part in self.parts if keep(part.module))
        if len(kept) > 1:
            yield kept
        for part in kept[:_MANY]:
            yield (part,)

    def weights(self, keep: Callable[[Any, str, torch.Tensor], bool]) -> Iterator[tuple[Part, str]]:
        """The parameters of the parts, of module, name and tensor."""
        for part in self.parts:
            for name, tensor in part.module.named_parameters(recurse=False):
                if keep(part.module, name, tensor):
                    yield part, name

    def calls(self, *names: str) -> list[FunctionCall]:
        """The calls of these functions that the layer itself makes."""
        return [call for call in self.replay.calls if call.name in names]

    def replaced(
        self, make: Callable[[], Mapping[str, Handler]], each: bool = True
    ) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Any]]]]:
        """Ways to replace functions: all of their calls, then one call alone.

        Args:
            make: the functions' handlers by name, made anew for each run.
            each: whether single calls are meant too.

        Yields:
            The words for which calls, and the change.
        """
        count = len(self.calls(*make()))
        if not count:
            return
        yield "", lambda: intercepted(make())
        if each and count > 1:
            for only in range(min(count, _MANY)):
                yield f" (call {only + 1} of {count})", partial(_one, make, only)

    def intercepted(self, handlers: Mapping[str, Handler]) -> AbstractContextManager[None]:
        """Give the calls of these functions to their handlers, which were made for this run."""
        return intercepted(handlers)

    def every(self, handler: Handler) -> AbstractContextManager[None]:
        """Give the calls of all functions to a handler."""
        return handled(handler)

    def given(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The layer's arguments."""
        yield from call_leaves(*self.replay.arguments)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What is there: the layer's arguments, and what the layers inside give."""
        for path, tensor in self.given():
            yield f"argument {path}", tensor
        for name, number, path, tensor in self.replay.outputs():
            yield name + (f" ({number})" if number else "") + (f" {path}" if path else ""), tensor


def _one(make: Callable[[], Mapping[str, Handler]], only: int) -> AbstractContextManager[None]:
    return intercepted(make(), only)
