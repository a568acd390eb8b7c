"""Call a torch model with inputs of a comparison: arrays in, tensors with paths out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.ground.errors import InputsError, ParityError, refused_inputs
from migrate.parity.ground.settings import SideSettings
from migrate.parity.sides import frames
from migrate.parity.sides.torch.capture.missing import missing_error, missing_operators
from migrate.parity.sides.torch.capture.tree import leaves
from migrate.parity.sides.torch.variant import DTYPES, neighbors
from shims._simulated_tpu.missing import missing_operator

Array = np.ndarray[Any, Any]
Outputs = list[tuple[str, Any]]

_NO_TENSOR = {"bool", "int", "float", "str", "Optional", "Union", "None", "NoneType", "typing"}


def parameters(module: nn.Module) -> tuple[tuple[str, bool], ...]:
    """Names of the forward pass's parameters that can be tensors, and whether each is required."""
    names = []
    try:
        signature = inspect.signature(module.forward)
    except ValueError:  # a TorchScript module
        return ()
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or _is_option(
            parameter
        ):
            continue
        names.append((parameter.name, parameter.default is parameter.empty))
    return tuple(names)


def _is_option(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is a switch or a number by its annotation or default, and no tensor."""
    said = parameter.annotation
    if said is not parameter.empty:
        text = said.__name__ if isinstance(said, type) else str(said)
        return set(re.findall(r"\w+", text)) <= _NO_TENSOR
    return isinstance(parameter.default, bool | str)


def tensors(
    arrays: Mapping[str, Array], where: torch.device, settings: SideSettings
) -> dict[str, Any]:
    """Convert inputs for torch: real numbers to the settings' dtype, integers to int64."""
    converted = {name: _tensor(array, settings) for name, array in arrays.items()}
    if settings.moved:
        converted = {
            name: neighbors(tensor, settings.moved, -1 - number)
            if tensor.is_floating_point()
            else tensor
            for number, (name, tensor) in enumerate(converted.items())
        }
    return {name: tensor.to(where) for name, tensor in converted.items()}


def _tensor(array: Array, settings: SideSettings) -> Any:
    if array.dtype.kind == "i":
        return torch.from_numpy(array.astype(np.int64))
    if array.dtype.kind in "bu":
        return torch.tensor(array)
    return torch.tensor(array.astype(np.float64)).to(DTYPES[settings.dtype])


def call(
    run: Callable[..., Any], module: nn.Module, tensors_by_argument: Mapping[str, Any], shown: str
) -> Outputs:
    """Call the model; return its outputs with their paths.

    Args:
        run: the model, or its compiled form.
        module: the model, for its signature.
        tensors_by_argument: argument → tensor; a number is a position.
        shown: the model, for messages.

    Raises:
        InputsError: the model takes other arguments.
        ParityError: the model raises, or returns no tensor.
    """
    args = [
        tensors_by_argument[name]
        for name in sorted((n for n in tensors_by_argument if n.isdigit()), key=int)
    ]
    kwargs = {name: tensor for name, tensor in tensors_by_argument.items() if not name.isdigit()}
    _require_bindable(module, args, kwargs, shown)
    try:
        value = run(*args, **kwargs)
    except ParityError:
        raise
    except Exception as error:
        if missing_operator(error):
            operators = missing_operators(lambda: run(*args, **kwargs))
            raise missing_error(shown, operators) from error
        raise forward_failed(error, shown) from error
    outputs = list(leaves(value))
    if not outputs:
        raise ParityError(
            f"{shown}: the forward pass returns a {type(value).__name__} without tensors",
            "return a tensor, or tensors in tuples, lists, mappings or dataclasses",
        )
    return outputs


def _require_bindable(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], shown: str
) -> None:
    """Check the inputs against the signature of the forward pass, if there is one.

    Raises:
        InputsError: an input has no parameter, or a required parameter has no input.
    """
    try:
        signature = inspect.signature(module.forward)
    except ValueError:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = [name for name, _ in parameters(module)]
        by_name = {
            parameter.name: parameter.default is parameter.empty
            for parameter in signature.parameters.values()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
        any_name = any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
        )
        unknown = [name for name in kwargs if name not in by_name and not any_name]
        positional = list(by_name)[: len(args)]
        lacking = [
            name
            for name, required in by_name.items()
            if required and name not in kwargs and name not in positional
        ]
        if unknown or lacking:
            raise refused_inputs(shown, unknown, lacking, takes) from None
        raise InputsError(
            f"{shown}: the inputs do not go with the forward pass ({error})",
            f"the model takes: {', '.join(takes) or 'no inputs'}",
        ) from None


def forward_failed(error: Exception, shown: str) -> ParityError:
    """Turn an error of the user's code into one line with its location."""
    at = frames.raised(error.__traceback__)
    if operator := missing_operator(error):
        return missing_error(shown, {operator: at})
    text = " ".join(str(error).split())[:300]
    return ParityError(
        f"{shown}: the forward pass raised {type(error).__name__}: {text}{f' ({at})' if at else ''}",
        "check that the model takes these inputs, or give others with --inputs",
    )


def chunks(arrays: Mapping[str, Array], rows: int | None) -> list[dict[str, Array]]:
    """Split the inputs into chunks of this many rows (of their first axis)."""
    if rows is None:
        return [dict(arrays)]
    total = max((array.shape[0] for array in arrays.values() if array.ndim), default=1)
    cut = [name for name, array in arrays.items() if array.ndim and array.shape[0] == total]
    return [
        {name: a[at : at + rows] if name in cut else a for name, a in arrays.items()}
        for at in range(0, total, rows)
    ]


def joined(parts: list[Outputs], shown: str) -> Outputs:
    """Join the outputs of several chunks into those of one pass.

    Raises:
        ParityError: an output has no axis of rows.
    """
    if len(parts) == 1:
        return parts[0]
    whole = []
    for same in zip(*parts, strict=True):
        path, first = same[0]
        tensors_ = [tensor for _, tensor in same]
        if first.ndim == 0 or any(t.shape[1:] != first.shape[1:] for t in tensors_):
            raise ParityError(
                f"{shown}: output {path or 'of the model'} has no batch axis",
                "compare it without --batch",
            )
        whole.append((path, torch.cat(tensors_)))
    return whole
