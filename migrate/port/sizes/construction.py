"""The arguments that a model's constructor was called with."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class Construction:
    """A call of a class that makes a model.

    Attributes:
        make: the class.
        arguments: name → value, the defaults among them.
        rest: positional arguments beyond the named ones.
        ordered: the names that come before those.
        left_none: names of the arguments that were None until the constructor put something there.
    """

    make: Callable[..., Any]
    arguments: Mapping[str, Any]
    rest: tuple[Any, ...] = ()
    ordered: tuple[str, ...] = ()
    left_none: tuple[str, ...] = ()

    def as_called(self) -> Construction:
        """The call with None where the constructor put something: some refuse what they choose themselves."""
        nones = dict.fromkeys(self.left_none)
        return replace(self, arguments={**self.arguments, **nones}, left_none=())

    def copied(self) -> dict[str, Any]:
        """The arguments, so that changes of them are no changes of these."""
        return {name: _copied(value) for name, value in self.arguments.items()}

    def build(self, arguments: Mapping[str, Any]) -> Any:
        """The model that these arguments give."""
        if not self.rest:
            return self.make(**arguments)
        first = [arguments[name] for name in self.ordered]
        named = {name: argument for name, argument in arguments.items() if name not in self.ordered}
        return self.make(*first, *self.rest, **named)


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # what another's object raises: it is used as it is
        return value


@dataclass
class ConstructionCalls:
    """The constructors of modules that were called."""

    calls: dict[int, tuple[Any, Construction]] = field(default_factory=dict)

    def note(self, module: Any, frame: FrameType | None) -> None:
        """Note the call of a module's constructor, while it or one that it calls runs in a frame."""
        first: FrameType | None = None
        while frame is not None and _constructs(frame, module):
            first, frame = frame, frame.f_back
        if first is not None:
            call = _construction(type(module), first.f_code, first.f_locals)
            self.calls[id(module)] = module, call

    def of(self, module: Any) -> Construction | None:
        """The call that made a module, or None if it was not seen."""
        seen = self.calls.get(id(module))
        return seen[1] if seen is not None and seen[0] is module else None

    def arguments(self, module: Any) -> dict[str, Mapping[str, Any]]:
        """Arguments of the constructors of a module and of those below it: path → name → value.

        Modules whose constructor was not seen (copies of others) are left out.
        """
        calls = {path: self.of(below) for path, below in module.named_modules()}
        return {path: call.arguments for path, call in calls.items() if call is not None}


@contextmanager
def constructions() -> Iterator[ConstructionCalls]:
    """Watch which arguments the constructors of torch modules are called with."""
    import torch

    constructions = ConstructionCalls()
    before = sys.getprofile()

    first: dict[int, FrameType] = {}  # the constructor of each class, not those that it calls above

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or code.co_name != "__init__" or not code.co_argcount:
            return
        if event == "return":
            for key in [key for key, at in first.items() if at is frame]:
                del first[key]
                module, construction = constructions.calls[key]
                constructions.calls[key] = module, _filled(construction, frame.f_locals)
            return
        values = frame.f_locals
        module = values.get(code.co_varnames[0])
        if isinstance(module, torch.nn.Module) and id(module) not in constructions.calls:
            constructions.calls[id(module)] = module, _construction(type(module), code, values)
            first[id(module)] = frame

    sys.setprofile(watch)
    try:
        yield constructions
    finally:
        sys.setprofile(before)


def _constructs(frame: FrameType, module: Any) -> bool:
    """Whether a frame is that of a constructor of this module."""
    code = frame.f_code
    is_constructor = code.co_name == "__init__" and code.co_argcount > 0
    return is_constructor and frame.f_locals.get(code.co_varnames[0]) is module


def _construction(cls: type, code: Any, values: Mapping[str, Any]) -> Construction:
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[1:count]
    arguments = {name: values[name] for name in names if name in values}
    rest: tuple[Any, ...] = ()
    if code.co_flags & inspect.CO_VARARGS:
        rest = tuple(values.get(code.co_varnames[count], ()))
        count += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        arguments |= values.get(code.co_varnames[count], {})
    # A constructor may take apart the lists that it is called with, as timm's builders do.
    arguments = {name: _contents(value) for name, value in arguments.items()}
    return Construction(
        cls, arguments, _contents(rest), tuple(code.co_varnames[1 : code.co_argcount])
    )


def _filled(construction: Construction, values: Mapping[str, Any]) -> Construction:
    """Return the call with the objects that the constructor put in place of None.

    `config = config or Config()` has its numbers in no argument. A call with that object makes the same
    model.
    """
    own = {
        name: values[name]
        for name, argument in construction.arguments.items()
        if argument is None and values.get(name) is not None
    }
    return replace(construction, arguments={**construction.arguments, **own}, left_none=tuple(own))


def _contents(value: Any) -> Any:
    """Return a list or dict with copies of the lists and dicts in it; other values as they are."""
    if type(value) is dict:
        return {key: _contents(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_contents, value))
    return value
