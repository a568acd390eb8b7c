"""Constructors of the script's own module classes, as it calls them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from migrate.port.sizes.construction import ConstructionCalls
from migrate.train.watch.calls import SeenCall, arguments_of, common


@dataclass(frozen=True)
class Built:
    """Calls of one constructor.

    Attributes:
        call: its arguments; plain ones where all objects of the class were built with the same.
        sizes: parameter that takes a module → names of that module's whole numbers.
    """

    call: SeenCall
    sizes: Mapping[str, tuple[str, ...]]


class Constructors:
    """Follows the constructors of module classes that a script defines."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[nn.Module, SeenCall, dict[str, tuple[str, ...]]]] = {}
        self._seen = ConstructionCalls()

    def follow(self) -> None:
        """Note the arguments of each constructor from now on."""
        original = nn.Module.__init__

        @functools.wraps(original)
        def created(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            frame = sys._getframe(1)
            cls = type(module)
            self._seen.note(module, frame)
            if cls.__module__ == "__main__" and frame.f_code is _code(cls):
                values = arguments_of(frame)
                sizes = {
                    name: tuple(n for n, x in vars(value).items() if type(x) is int)
                    for name, value in frame.f_locals.items()
                    if name != "self" and isinstance(value, nn.Module)
                }
                call = SeenCall(cls.__qualname__, frame.f_code.co_firstlineno, values)
                self._calls[id(module)] = module, call, sizes

        nn.Module.__init__ = created

    def arguments(self, step: nn.Module) -> dict[str, Mapping[str, Any]]:
        """Arguments of the constructors of the modules in a step: path → name → value."""
        return self._seen.arguments(step)

    def of(self, step: nn.Module) -> dict[str, Built]:
        """Constructors of the modules in a step, by class."""
        built: dict[str, Built] = {}
        for module in step.modules():
            _, call, sizes = self._calls.get(id(module), (None, None, {}))
            if call is None:
                continue
            known = built.get(call.function)
            calls = [call] if known is None else common([known.call], [call])
            built[call.function] = Built(calls[0], sizes)
        return built


def _code(cls: type) -> Any:
    return getattr(vars(cls).get("__init__"), "__code__", None)
