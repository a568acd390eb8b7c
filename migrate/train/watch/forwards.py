"""Calls of a step's modules outside of its updates that move running statistics, each as Flax source."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from migrate.port.compiler import compiled
from migrate.prove.record import listen
from migrate.train.watch.listening import autocast_without_effect
from migrate.train.watch.step import Bound, build, class_name
from migrate.train.watch.values import plain

# Calls of one statement that are kept, at most.
_MOST = 256


@dataclass(frozen=True)
class ForwardCall:
    """Call of a module.

    Attributes:
        after: number of updates before it.
        inputs: parameter of the module's forward → array.
    """

    after: int
    inputs: Mapping[str, Any]


@dataclass
class SeenForwards:
    """Calls of one module by one statement.

    Attributes:
        module: the module, as a child of the step.
        calls: the calls; None once they have no form that a program can have.
        port: file with the source; "" if there is none.
        refused: why there is none.
    """

    module: str
    calls: list[ForwardCall] | None = field(default_factory=list)
    port: str = ""
    refused: str = ""


def inputs_of(module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> dict[str, Any] | None:
    """Tensors of a call by the parameters of the module's forward; None if it has other arguments."""
    names = [*inspect.signature(module.forward).parameters]
    tensors = all(isinstance(value, torch.Tensor) for value in args)
    if kwargs or not args or not tensors or len(args) > len(names):
        return None
    return dict(zip(names, args, strict=False))


def note(seen: SeenForwards, after: int, inputs: Mapping[str, Any] | None) -> None:
    """Note a call."""
    if seen.calls is None:
        return
    alike = not seen.calls or (inputs is not None and seen.calls[0].inputs.keys() == inputs.keys())
    if inputs is None or not alike or len(seen.calls) == _MOST:
        seen.calls = None
        return
    seen.calls.append(ForwardCall(after, {name: plain(x) for name, x in inputs.items()}))


def write_forward(
    title: str,
    child: str,
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    folder: Path,
    shown: str,
    kept: Callable[[], AbstractContextManager[None]],
) -> tuple[str, str]:
    """Write the forward of a module in training mode as Flax source.

    Args:
        title: name of the program's function.
        child: name of the module.
        module: the module.
        inputs: tensors by the parameters of its forward.
        folder: receives the file.
        shown: the statement, for messages.
        kept: gives a context in which the module has no hooks, and after which it is as before.

    Returns:
        The file, and why there is none ("" if there is).
    """
    names = {(name, ()): name for name in inputs}
    bound = Bound(dict(inputs), {child: module}, {}, {}, names)
    result = f"{child}({', '.join(inputs)})"
    file = folder / f"{title}.py"
    with kept(), listen.dropout_as_written(), autocast_without_effect(), torch.enable_grad():
        step = build(bound, "", result, {}, {child: module}, file, title=class_name(title))
        try:
            port = compiled(step, dict(inputs), shown)
        except Exception as error:  # the script goes on: the statement is reported
            return "", str(getattr(error, "what", error))
    if port.refused or port.drawn or port.draws or port.streams or port.constants:
        return "", port.refused or "it draws random numbers, or has constants of its own"
    if not (port.trains and port.statistics):
        return "", "its statistics are not those of a BatchNorm"
    written = folder / f"{title}.pickle"
    written.write_bytes(pickle.dumps(replace(port, write=None)))
    return str(written), ""
