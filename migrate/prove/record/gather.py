"""Gather the details of each step of a running program: see `recording.details`."""

from __future__ import annotations

import functools
import json
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from migrate.prove.record import calls, sums
from migrate.prove.record.lines import users_line
from migrate.prove.recording import dtypes, meters
from migrate.prove.recording.details import Details
from migrate.prove.recording.records import end_path

# Maximum numbers per step: more calls occur in no training loop that steps its optimizer.
_MOST_TENSORS = 64
_MOST_LINES = 10_000
_MOST_NAMES = 20
# Maximum number of sizes of batches, each as large as the inputs of a model.
_MOST_SIZES = 8
# Settings of how an optimizer runs, not of what it computes; the learning rate is recorded separately.
_NO_SETTINGS = frozenset(
    {
        "params",
        "lr",
        "initial_lr",
        "foreach",
        "fused",
        "capturable",
        "differentiable",
        "param_names",
    }
)

_Sums = tuple[str, torch.Tensor]


class Gathering:
    """Observations of a process since its last step, besides losses, gradients and weights."""

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}
        self._made: weakref.WeakKeyDictionary[torch.optim.Optimizer, str] = (
            weakref.WeakKeyDictionary()
        )
        self._known: weakref.WeakKeyDictionary[torch.nn.Module, set[tuple[str, str]]] = (
            weakref.WeakKeyDictionary()
        )
        self._fresh: list[tuple[weakref.ref[torch.nn.Module], str, str]] = []
        self._inputs: deque[_Sums] = deque(maxlen=_MOST_TENSORS)
        self._labels: deque[_Sums] = deque(maxlen=_MOST_TENSORS)
        self._zeroed = 0
        self._starts: weakref.WeakKeyDictionary[torch.optim.Optimizer, torch.Tensor] = (
            weakref.WeakKeyDictionary()
        )
        self._settings: weakref.WeakKeyDictionary[
            torch.optim.Optimizer, tuple[dict[str, Any], ...]
        ] = weakref.WeakKeyDictionary()
        self._living: list[torch.nn.Module] = []
        self._printed: deque[str] = deque(maxlen=_MOST_LINES)
        self._first_sums: tuple[list[str], torch.Tensor] | None = None
        self._optimized: set[str] = set()

    def install(self) -> None:
        """Start to observe the program."""
        calls.to_models(lambda tensors: self._inputs.extend(map(_sums, filter(_plain, tensors))))
        calls.to_labels(lambda tensors: self._labels.extend(map(_sums, filter(_plain, tensors))))
        calls.to_steps(self._saw_call)
        dtypes.to_products(self._saw_product)
        meters.to_output(self._printed.append)

    def at(self, what: str) -> None:
        """Keep the user's line that makes this call."""
        if line := users_line():
            self._lines[what] = line

    def _saw_call(self, what: str, optimizer: torch.optim.Optimizer | None) -> None:
        self._zeroed += what == "zero_grad"
        self.at(what)
        if what == "optimizer" and optimizer is not None and what in self._lines:
            self._made[optimizer] = self._lines[what]

    def _saw_product(self, name: str, dtype: str) -> None:
        module = calls.innermost()
        if module is None:
            return
        known = self._known.setdefault(module, set())
        if (name, dtype) not in known:
            known.add((name, dtype))
            self._fresh.append((weakref.ref(module), name, dtype))

    def before_step(self, optimizer: torch.optim.Optimizer, held: Sequence[torch.Tensor]) -> None:
        """Inspect an optimizer before its step."""
        self.at("step")
        if optimizer not in self._settings:
            with torch.no_grad():
                self._starts[optimizer] = sums.two_sums(held).sum(0)

    def after_step(
        self,
        optimizer: torch.optim.Optimizer,
        held: Sequence[torch.Tensor],
        names: Sequence[str],
        models: Mapping[str, torch.nn.Module],
        modules: Mapping[int, torch.nn.Module],
    ) -> Callable[[], Details]:
        """Collect the details of a step.

        Args:
            optimizer: the optimizer that has just stepped.
            held: its parameters.
            names: names of these parameters.
            models: the outermost models, by the prefix of their names.
            modules: all living modules.

        Returns:
            Function that reads the details, once the step has been computed.
        """
        first = optimizer not in self._settings
        settings = tuple(_settings(group) for group in optimizer.param_groups)
        changed = settings if settings != self._settings.get(optimizer) else ()
        self._settings[optimizer] = settings
        self._optimized.update(names)
        if first:
            if self._first_sums is None:
                self._keep_first(models)
            # Walking through a large model at every step would be slow.
            self._living = [module for model in models.values() for module in model.modules()]
        lines = dict(self._lines)
        lines.pop("optimizer", None)
        if optimizer in self._made:
            lines["optimizer"] = self._made[optimizer]
        start = self._starts.pop(optimizer, None)
        inputs, labels = list(self._inputs), list(self._labels)
        plain = Details(
            lines=lines,
            kind=type(optimizer).__name__,
            settings=changed,
            without_gradient=tuple(
                name for name, parameter in zip(names, held, strict=True) if parameter.grad is None
            )[:_MOST_NAMES],
            evaluating=sum(not module.training for module in self._living),
            synchronized=sum(type(module).__name__ == "SyncBatchNorm" for module in self._living),
            wrapped=sum(isinstance(module, DistributedDataParallel) for module in modules.values())
            if first
            else 0,
            zeroed=self._zeroed,
            dtypes=self._named_dtypes(models),
        )
        self._zeroed = 0
        self._inputs.clear()
        self._labels.clear()

        def read() -> Details:
            return Details(
                **vars(plain)
                | {
                    "start": tuple(start.tolist()) if start is not None else (),
                    "inputs": _read(inputs),
                    "labels": _read(labels),
                }
            )

        return read

    def _named_dtypes(self, models: Mapping[str, torch.nn.Module]) -> dict[str, tuple[str, ...]]:
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return {}
        names = {
            id(module): prefix + name
            for prefix, model in models.items()
            for name, module in model.named_modules()
        }
        dtypes_by_module: dict[str, list[str]] = {}
        for reference, operator, dtype in fresh:
            module = reference()
            if module is not None:
                place = names.get(id(module), type(module).__name__) or type(module).__name__
                dtypes_by_module.setdefault(f"{place} ({operator})", []).append(dtype)
        return {name: tuple(sorted(set(seen))) for name, seen in dtypes_by_module.items()}

    def _keep_first(self, models: Mapping[str, torch.nn.Module]) -> None:
        tensors = _tensors(models)
        with torch.no_grad():
            first = sums.two_sums(list(tensors.values()))
        self._first_sums = list(tensors), first

    def finish(self, folder: Path, rank: int, models: Mapping[str, torch.nn.Module]) -> None:
        """Write facts known only at the end: printed lines, and tensors that no step has changed."""
        unchanged: list[str] = []
        if self._first_sums is not None:
            names, first = self._first_sums
            tensors = _tensors(models)
            with torch.no_grad():
                last = sums.two_sums(list(tensors.values())).tolist()
            before = dict(zip(names, first.tolist(), strict=True))
            now = dict(zip(tensors, last, strict=True))
            unchanged = [name for name in now if now[name] == before.get(name)]
        kept = {
            "unchanged": unchanged,
            "optimized": sorted(self._optimized),
            "printed": list(self._printed),
        }
        end_path(folder, rank).write_text(json.dumps(kept))


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"parameters": len(group["params"])}
    for name, value in group.items():
        several = isinstance(value, list | tuple)
        plain = all(isinstance(element, int | float) for element in (value if several else [value]))
        if name not in _NO_SETTINGS and plain:
            kept[name] = list(value) if several else value
    return kept


def _plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor outlives the call; tensors of `torch.func` do not."""
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _sums(tensor: torch.Tensor) -> _Sums:
    with torch.no_grad():
        wide = sums.wide(tensor).flatten()
        both = torch.stack([(wide * _ramp(len(wide), wide.device)).sum(), wide.square().sum()])
        return "x".join(map(str, tensor.shape)) or "scalar", both


@functools.lru_cache(maxsize=_MOST_SIZES)
def _ramp(length: int, device: torch.device) -> torch.Tensor:
    """Rising weights, which distinguish a batch from the same batch in another order.

    They are created once for each size: torch_xla puts an `arange` into the graph as a list of all its
    numbers, which took 20 ms a step for 163,840 numbers (measured, 2.9).
    """
    return (torch.arange(1, length + 1, dtype=torch.float32, device="cpu") / length).to(device)


def _read(sums: list[_Sums]) -> tuple[tuple[str, float, float], ...]:
    return tuple((shape, *both.tolist()) for shape, both in sums)


def _tensors(models: Mapping[str, torch.nn.Module]) -> dict[str, torch.Tensor]:
    return {
        prefix + name: tensor
        for prefix, model in models.items()
        for named in (model.named_parameters(), model.named_buffers())
        for name, tensor in named
    }
