"""Search of a user's file for the class whose model fits a checkpoint: `--model net.py`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from converters.checkpoint.reader import TensorInfo
from converters.errors import ModelLoadError
from converters.mapping.module_tree import Outcome, read_slots
from converters.model import build, imported, load_model, no_file

_CONFIGURATIONS = ("config", "cfg", "conf", "args", "hparams", "params")


@dataclass(frozen=True)
class MatchedModel:
    """Model of a checkpoint, and its origin.

    Attributes:
        model: the `nn.Module`, on the meta device where possible.
        name: its name, such as "net.py:Net"; reported to the user if it was searched.
        searched: whether it was found by its keys and shapes, not by name.
    """

    model: Any
    name: str
    searched: bool


def find_model(spec: str, infos: Mapping[str, TensorInfo]) -> MatchedModel:
    """Return the model named by the user, or the one in the named file that fits the checkpoint.

    The file is run, and each of its `nn.Module` classes is built if possible. Required arguments
    get an instance of their annotated class or of the file's only dataclass, built without
    arguments.

    Args:
        spec: `pkg.mod:factory`, `path/file.py:factory`, or `path/file.py`, whose classes are searched.
        infos: the shapes of the checkpoint's tensors, without prefixes.

    Raises:
        ModelLoadError: as in `load_model`; or no class of the file fits, or several do: all are listed.
    """
    if not spec.endswith(".py"):
        return MatchedModel(load_model(spec), spec, searched=False)
    if not Path(spec).is_file():
        raise no_file(Path(spec))
    with imported(spec, spec) as module:
        verdicts = {name: _tried(module, cls, infos) for name, cls in _classes(module).items()}
    fitting = {name: model for name, (model, why) in verdicts.items() if not why}
    if len(fitting) == 1:
        ((name, model),) = fitting.items()
        return MatchedModel(model, f"{spec}:{name}", searched=True)
    choose = f"name it: {spec}:NAME, or a function that builds it"
    if fitting:
        raise ModelLoadError(
            f"several classes of {spec} have the checkpoint's keys and shapes: {', '.join(fitting)}",
            choose,
        )
    tried = "; ".join(f"{name} ({why})" for name, (_, why) in verdicts.items())
    raise ModelLoadError(
        f"no class of {spec} has the checkpoint's keys and shapes: {tried or 'it has no nn.Module'}",
        choose,
    )


def _classes(module: ModuleType) -> dict[str, Any]:
    """Return the classes that the file itself defines, by name."""
    from torch import nn

    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, nn.Module)
        and value.__module__ == module.__name__
        and value.__name__ == name
    }


def _tried(module: ModuleType, cls: Any, infos: Mapping[str, TensorInfo]) -> tuple[Any, str]:
    """Return the model and "", or None and the mismatch with the checkpoint."""
    factory = _factory(module, cls)
    if factory is None:
        return None, "needs arguments"
    try:
        model = build(cls.__name__, factory)
    except ModelLoadError as error:
        return None, f"cannot be built: {error.what[:120]}"
    return model, _difference(model, infos)


def _factory(module: ModuleType, cls: Any) -> Callable[[], Any] | None:
    """Return a call of the class; None if a required argument has no known value."""
    try:
        parameters = inspect.signature(cls).parameters.values()
        hints = inspect.get_annotations(cls.__init__, eval_str=True)
    except Exception:  # the user's annotations may raise anything
        parameters, hints = inspect.signature(cls).parameters.values(), {}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in parameters if p.default is p.empty and p.kind not in variadic]
    arguments = {}
    for parameter in required:
        kind = hints.get(parameter.name) or _configuration_class(module, parameter.name)
        if (
            not isinstance(kind, type)
            or kind.__module__ == "builtins"
            or not _needs_no_arguments(kind)
        ):
            return None
        arguments[parameter.name] = kind
    if any(p.kind is p.POSITIONAL_ONLY for p in required):
        return None
    return lambda: cls(**{name: kind() for name, kind in arguments.items()})


def _configuration_class(module: ModuleType, name: str) -> Any:
    """Return the only dataclass of the file, for an argument with the name of a configuration."""
    dataclasses_of_file = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and dataclasses.is_dataclass(value)
        and value.__module__ == module.__name__
    ]
    return (
        dataclasses_of_file[0]
        if name in _CONFIGURATIONS and len(dataclasses_of_file) == 1
        else None
    )


def _needs_no_arguments(kind: type) -> bool:
    """Whether a class can be called without arguments, according to its signature."""
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return False
    return True


def _difference(model: Any, infos: Mapping[str, TensorInfo]) -> str:
    """Return the difference of the model's state dict from the checkpoint, or ""."""
    slots = read_slots(model)
    unknown = [key for key in infos if key not in slots]
    groups: dict[str, list[str]] = {}
    for key, slot in slots.items():
        if slot.outcome is not Outcome.DROPPED:
            groups.setdefault(slot.tied or key, []).append(key)
    lacking = [first for first, keys in groups.items() if not any(key in infos for key in keys)]
    shapes = [
        f"{key} is {slots[key].shape} here, {info.shape} there"
        for key, info in infos.items()
        if key in slots and slots[key].shape != info.shape
    ]
    parts = []
    if unknown:
        parts.append(f"lacks {len(unknown)} keys of the checkpoint, as {unknown[0]}")
    if lacking:
        parts.append(f"has {len(lacking)} keys more, as {lacking[0]}")
    if shapes:
        parts.append(f"{len(shapes)} other shapes, as {shapes[0]}")
    return ", ".join(parts)
