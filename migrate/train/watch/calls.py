"""Calls in one run of the step: outputs of its trained modules, and functions of the script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as hooks

from migrate.train.frames import script_frames
from migrate.train.watch.values import is_data, leaves, plain, snapshot

_VARIABLE = 0x04 | 0x08  # code flags: *args, **kwargs
# Fields of a model's output that stand for all of it.
_MAIN = ("logits", "last_hidden_state")
MODULE, DATA, PLAIN, OTHER = "module", "data", "plain", "other"


@dataclass(frozen=True)
class SeenCall:
    """Call of a function of the script.

    Attributes:
        function: qualified name of the function.
        first: first line of its code.
        arguments: parameter → kind and value: ("module", its name in the step), ("data", path of each
            tensor → input of the step), ("plain", the value), ("other", None).
        factor: derivative of the loss by what the function returned, if the loss is that number times it;
            None else.
        held: attributes of the object, if the function is a method, that are modules of the step.
    """

    function: str
    first: int
    arguments: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    factor: float | None = None
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class LiveCall:
    """Call of a function of the script, with the objects themselves.

    Attributes:
        qualified: qualified name of the function.
        first: first line of its code.
        function: the function; of a method, the one that takes the object.
        arguments: parameter → value.
    """

    qualified: str
    first: int
    function: Callable[..., Any]
    arguments: Mapping[str, Any]


def observe(
    step: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    file: str,
    contained: Collection[str] = (),
    of_parts: list[np.ndarray[Any, Any]] | None = None,
) -> tuple[list[np.ndarray[Any, Any]], list[SeenCall], list[LiveCall]]:
    """Run the step, and return outputs of its trained modules and calls of the script's functions.

    Args:
        step: the step.
        tensors: its inputs by name.
        file: the script, as its code objects name it.
        contained: names of parts of its modules, whose outputs `of_parts` receives.

    Returns:
        What each outermost call of a trained module or of a part of one gave, in order, and the calls, as
        they can be stored and as they were.
    """
    inputs = {id(tensor): name for name, tensor in tensors.items()}
    modules = {id(module): name for name, module in step.named_children()}
    outputs: list[np.ndarray[Any, Any]] = []
    calls: list[tuple[FrameType, dict[str, tuple[str, Any]]]] = []
    returned: list[tuple[FrameType, Any]] = []
    live: list[LiveCall] = []

    def profile(frame: FrameType, event: str, value: Any) -> None:
        if frame.f_code.co_filename != file:
            return
        if event == "call":
            arguments = _arguments(frame)
            calls.append((frame, {n: _kind(v, inputs, modules) for n, v in arguments.items()}))
            function = _function(frame)
            if function is not None and not frame.f_code.co_flags & _VARIABLE:
                copies = {n: snapshot(v) if is_data(v) else v for n, v in arguments.items()}
                code = frame.f_code
                live.append(LiveCall(code.co_qualname, code.co_firstlineno, function, copies))
        elif event == "return":
            returned.append((frame, value))

    before = sys.getprofile()
    parts = [step.get_submodule(name) for name in contained]
    with (
        _outermost_calls([*step.children()], outputs),
        _outermost_calls(parts, [] if of_parts is None else of_parts),
    ):
        sys.setprofile(profile)
        try:
            loss = step(**tensors)
        finally:
            sys.setprofile(before)
    results = {id(frame): value for frame, value in returned}
    seen = [
        SeenCall(
            frame.f_code.co_qualname,
            frame.f_code.co_firstlineno,
            arguments,
            _factor(loss, results.get(id(frame))),
        )
        for frame, arguments in calls
        if not frame.f_code.co_flags & _VARIABLE
    ]
    return outputs, seen, live


def building_call(script: str) -> SeenCall | None:
    """The call of the script's function that is running; None outside of functions."""
    _, frame, between = script_frames(script)
    if frame is None or between or frame.f_code.co_name == "<module>":
        return None
    if frame.f_code.co_flags & _VARIABLE:
        return None
    arguments = arguments_of(frame)
    return SeenCall(frame.f_code.co_qualname, frame.f_code.co_firstlineno, arguments)


def arguments_of(frame: FrameType) -> dict[str, tuple[str, Any]]:
    """Kind and value of each argument of a frame."""
    return {name: _kind(value, {}, {}) for name, value in _arguments(frame).items()}


def frame_calls(frame: FrameType | None, modules: Mapping[int, str]) -> list[SeenCall]:
    """Calls of the script's functions that are running, innermost first.

    Args:
        frame: the innermost frame.
        modules: names of the step's modules, by their identities.
    """
    file = frame.f_code.co_filename if frame is not None else ""
    calls = []
    while frame is not None:
        code = frame.f_code
        if (
            code.co_filename == file
            and code.co_name != "<module>"
            and not code.co_flags & _VARIABLE
        ):
            arguments = _arguments(frame)
            held = tuple(
                name
                for name, value in getattr(arguments.get("self"), "__dict__", {}).items()
                if id(value) in modules
            )
            kinds = {name: _kind(value, {}, modules) for name, value in arguments.items()}
            calls.append(SeenCall(code.co_qualname, code.co_firstlineno, kinds, held=held))
        frame = frame.f_back
    return calls


def common(first: list[SeenCall], later: list[SeenCall]) -> list[SeenCall]:
    """Calls with those plain values alone that are the same in both."""
    other = {(call.function, call.first): call.arguments for call in later}
    return [
        replace(
            call,
            arguments={
                name: kind
                if other.get((call.function, call.first), {}).get(name) == kind
                else (OTHER, None)
                for name, kind in call.arguments.items()
            },
        )
        if (call.function, call.first) in other
        else call
        for call in first
    ]


def _function(frame: FrameType) -> Callable[..., Any] | None:
    """The function that a frame runs, if it is one of the module or of a class of the module."""
    value: Any = frame.f_globals
    for number, part in enumerate(frame.f_code.co_qualname.split(".")):
        value = value.get(part) if number == 0 else vars(value).get(part)
        if value is None or not (
            isinstance(value, type) or callable(value) or hasattr(value, "__func__")
        ):
            return None
        if not isinstance(value, type):
            break
    function = getattr(value, "__func__", value)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function if getattr(function, "__code__", None) is frame.f_code else None


def _arguments(frame: FrameType) -> dict[str, Any]:
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: frame.f_locals[name] for name in names if name in frame.f_locals}


def _kind(value: Any, inputs: Mapping[int, str], modules: Mapping[int, str]) -> tuple[str, Any]:
    if isinstance(value, nn.Module):
        return MODULE, modules.get(id(value), "")
    if is_data(value):
        known = [(path, inputs.get(id(tensor))) for path, tensor in leaves(value)]
        return (OTHER, None) if any(n is None for _, n in known) else (DATA, dict(known))
    return (PLAIN, value) if is_plain(value) else (OTHER, None)


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, None, or a container of them."""
    if type(value) in (tuple, list):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _factor(loss: Any, value: Any) -> float | None:
    """The number c if the loss is c times the value."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(loss, value, retain_graph=True, allow_unused=True)
    if gradient is None:
        return None
    factor = float(gradient)
    whole, part = float(loss.detach()), float(value.detach())
    return factor if abs(whole - factor * part) <= 1e-6 * abs(whole) else None


@contextmanager
def _outermost_calls(
    modules: Sequence[nn.Module], outputs: list[np.ndarray[Any, Any]]
) -> Iterator[None]:
    """Collect what calls of trained modules give, without those inside of such a call."""
    tracked = {
        id(part)
        for child in modules
        if any(parameter.requires_grad for parameter in child.parameters())
        for part in child.modules()
    }
    depth = 0

    def before(module: nn.Module, _: Any) -> None:
        nonlocal depth
        depth += id(module) in tracked

    def after(module: nn.Module, _: Any, output: Any) -> None:
        nonlocal depth
        if id(module) not in tracked:
            return
        depth -= 1
        if depth or not torch.is_grad_enabled():
            return
        main = next((getattr(output, name) for name in _MAIN if hasattr(output, name)), output)
        several = main if isinstance(main, list | tuple) else [main]
        outputs.extend(plain(value) for value in several if isinstance(value, torch.Tensor))

    handles = [
        hooks.register_module_forward_pre_hook(before),
        hooks.register_module_forward_hook(after, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
