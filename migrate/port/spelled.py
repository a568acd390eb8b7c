"""Source of a model's construction in a script: the class and the constructor's arguments."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import math
import sys
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_SMALL = 64  # elements of a tensor that is written down


class UnspelledError(ValueError):
    """A value has no form in source; the message names it."""


class RecordedConstructions:
    """Constructor arguments of the modules that this process made."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, tuple[Any, ...], Mapping[str, Any]]] = {}

    def start(self) -> None:
        """Have every module that is made from now on remembered."""
        from torch import nn

        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            instance = object.__new__(cls)
            self._made[id(instance)] = instance, args, kwargs
            return instance

        setattr(nn.Module, "__new__", staticmethod(new))  # noqa: B010

    def of(self, module: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]] | None:
        """The arguments of a module's constructor, or None if nobody saw it."""
        construction = self._made.get(id(module))
        return None if construction is None else construction[1:]


def spelled(module: Any, constructions: RecordedConstructions) -> dict[str, Any]:
    """The model as source: `imports`, `folders` and `call`; or `why` there is none."""
    writer = _Writer(constructions)
    try:
        call = writer.value(module)
    except UnspelledError as error:
        return {"why": str(error)}
    return {
        "imports": sorted(writer.imports),
        "folders": sorted(writer.folders),
        "call": call,
    }


class _Writer:
    """Writes values; notes what has to be imported, and from which folders."""

    def __init__(self, constructions: RecordedConstructions) -> None:
        self._constructions = constructions
        self.imports: set[str] = set()
        self.folders: set[str] = set()

    def value(self, value: Any) -> str:
        import torch

        if value is None or type(value) in (bool, int, str, bytes):
            return repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f"float('{value}')"
        if isinstance(value, torch.dtype | torch.device | torch.Size):
            self.imports.add("import torch")
            text = repr(value)
            return text if text.startswith("torch.") else f"torch.{text}"
        if isinstance(value, enum.Enum):
            return f"{self.name(type(value))}.{value.name}"
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [field.name for field in dataclasses.fields(value) if field.init]
            return self._call(self.name(type(value)), (), {n: getattr(value, n) for n in fields})
        if isinstance(value, argparse.Namespace | types.SimpleNamespace):
            module = type(value).__module__
            self.imports.add(f"import {module}")
            return self._call(f"{module}.{type(value).__name__}", (), vars(value))
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return self.name(value)
        return self._container(value)

    def _container(self, value: Any) -> str:
        if type(value) in (list, set, tuple) and value:
            parts = ", ".join(map(self.value, value))
            if isinstance(value, tuple):
                return f"({parts},)"
            return f"[{parts}]" if isinstance(value, list) else f"{{{parts}}}"
        if type(value) in (list, tuple, dict):
            if not isinstance(value, dict):
                return repr(value)
            pairs = (f"{self.value(key)}: {self.value(element)}" for key, element in value.items())
            return f"{{{', '.join(pairs)}}}"
        raise UnspelledError(f"{type(value).__name__} {repr(value)[:60]}")

    def _module(self, module: Any) -> str:
        construction = self._constructions.of(module)
        if construction is None:
            raise UnspelledError(f"{type(module).__name__}, of which no constructor was seen")
        return self._call(self.name(type(module)), *construction)

    def _tensor(self, tensor: Any) -> str:
        if tensor.numel() > _SMALL:
            raise UnspelledError(f"a tensor of shape {list(tensor.shape)}")
        self.imports.add("import torch")
        return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype})"

    def _call(self, name: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
        arguments = [
            *map(self.value, args),
            *(f"{key}={self.value(v)}" for key, v in kwargs.items()),
        ]
        return f"{name}({', '.join(arguments)})"

    def name(self, what: Any) -> str:
        """A class or function by its name, imported from its module."""
        module, name = what.__module__, what.__qualname__
        if "<" in name:
            raise UnspelledError(f"{name}, which is made within a function")
        if module == "builtins":
            return str(name)
        first = name.partition(".")[0]
        if module != "__main__":
            file_name = getattr(sys.modules.get(module), "__file__", None)
            if file_name and "site-packages" not in file_name and "/lib/python3" not in file_name:
                depth = module.count(".") + (Path(file_name).name == "__init__.py")
                self.folders.add(str(Path(file_name).resolve().parents[depth]))
        else:
            file = Path(inspect.getfile(what)).resolve()
            module = file.stem
            self.folders.add(str(file.parent))
        self.imports.add(f"from {module} import {first}")
        return str(name)
