"""Record the inputs of a script's model inside the script's process. `shims.activate` loads this module.

The model is the module of the named class, else the largest module with trainable parameters that the
script itself calls. Wrappers (DistributedDataParallel, DataParallel, torch.compile) are looked through.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from migrate.port.spelled import RecordedConstructions, spelled

FOLDER, NAME, COUNT = "MIGRATE_PORT_FOLDER", "MIGRATE_PORT_NAME", "MIGRATE_PORT_COUNT"
FACTS = "recorded.json"
_WRAPPERS = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
)


def install() -> None:
    """Watch the modules of this process."""
    if FOLDER in os.environ:
        _Witness(Path(os.environ[FOLDER]), os.environ[NAME], int(os.environ[COUNT])).start()


class _Witness:
    """The calls of one process.

    Args:
        folder: folder for the record.
        name: the class of the model; "" if nobody names it.
        count: how many calls are recorded.
    """

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self._folder, self._name, self._count = folder, name, count
        self._main = os.getpid()
        self._depth = threading.local()
        self._calls: dict[int, tuple[Any, list[dict[str, Any]]]] = {}
        self._constructions = RecordedConstructions()

    def start(self) -> None:
        """Replace the call of every module."""
        from torch import nn

        self._constructions.start()
        original = nn.Module.__call__

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            depth = getattr(self._depth, "value", 0)
            if type(module).__name__ in _WRAPPERS:
                return original(module, *args, **kwargs)
            if self._wanted(module, depth):
                self._take(module, args, kwargs)
            self._depth.value = depth + 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth.value = depth

        setattr(nn.Module, "__call__", call)  # noqa: B010

    def _wanted(self, module: Any, depth: int) -> bool:
        if os.getpid() != self._main:
            return False  # a worker that loads data
        if self._name:
            return type(module).__name__ == self._name
        return depth == 0 and any(parameter.requires_grad for parameter in module.parameters())

    def _take(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        _, calls = self._calls.setdefault(id(module), (module, []))
        calls.append(_bound(module, args, kwargs))
        largest, recorded = max(self._calls.values(), key=lambda call: _size(call[0]))
        if len(recorded) < self._count:
            return
        self._write(largest, recorded)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _write(self, module: Any, calls: list[dict[str, Any]]) -> None:
        import torch
        from safetensors.torch import save_file

        first = calls[0]
        names = [name for name, value in first.items() if isinstance(value, torch.Tensor)]
        alike = [call for call in calls if [n for n in call if n in names] == names]
        beside = {
            name: repr(value)[:80]
            for name, value in first.items()
            if name not in names and not _is_default(module, name, value)
        }
        (self._folder / "inputs").mkdir()
        for number, call in enumerate(alike):
            tensors = {name: _kept(call[name]) for name in names}
            if tensors:
                save_file(tensors, self._folder / "inputs" / f"{number:03d}.safetensors")
        facts = {
            "name": type(module).__qualname__,
            "names": names,
            "count": len(alike),
            "beside": beside,
            **spelled(module, self._constructions),
        }
        temporary = self._folder / f"{FACTS}.new"
        temporary.write_text(json.dumps(facts))
        temporary.rename(self._folder / FACTS)


def _bound(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by the names that forward gives them, tensors as they are now."""
    signature = inspect.signature(module.forward)
    call_arguments = signature.bind(*args, **kwargs).arguments
    named: dict[str, Any] = {}
    for name, value in call_arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = value
    return {name: _copied(value) for name, value in named.items()}


def _copied(value: Any) -> Any:
    return value.detach().cpu().clone() if hasattr(value, "detach") else value


def _kept(tensor: Any) -> Any:
    if tensor.is_floating_point():
        tensor = tensor.float()
    return tensor.contiguous().clone()


def _is_default(module: Any, name: str, value: Any) -> bool:
    parameter = inspect.signature(module.forward).parameters.get(name)
    return parameter is not None and parameter.default is value


def _size(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
