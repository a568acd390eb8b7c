"""Capture of a torch model's layers during a run, with hooks on every module.

Arguments are captured before a module runs, because operations in place change them later; outputs are
captured afterwards. Captured tensors go to a `Store`. On the CPU and CUDA they are written or measured at
once (`WritingStore`), so that memory holds none of them; under XLA they are kept until the pass is over
(`xla`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from converters.slow_paths import slow_paths
from migrate.parity.dump.dump import Named, TensorRef
from migrate.parity.dump.recent import Recent
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.sides import frames
from migrate.parity.sides.torch.capture.forced import TorchForcing
from migrate.parity.sides.torch.capture.layers import layers
from migrate.parity.sides.torch.capture.tree import call_leaves, leaves, replaced, to_numpy


class Store(Protocol):
    """Destination of captured tensors."""

    def given(self, layer: str, number: int, tensors: Sequence[tuple[str, Any]]) -> Any:
        """Store the arguments of a call before it runs."""

    def call(
        self,
        layer: str,
        number: int,
        order: int,
        arguments: Any,
        outputs: Sequence[tuple[str, Any]],
    ) -> None:
        """Store a call that ended; `arguments` is the result of the method `given`."""


class WritingStore:
    """Store that writes arguments before each call and outputs when it ends, and keeps nothing."""

    def __init__(self, writer: DumpWriter) -> None:
        self._writer = writer
        self._recent = Recent(writer.identity)
        self._input = 0

    def begin(self, number: int) -> None:
        """Begin the input with this number."""
        self._input = number

    def given(
        self, layer: str, number: int, tensors: Sequence[tuple[str, Any]]
    ) -> tuple[TensorRef, ...]:
        """See `Store`."""
        return self._writer.given(layer, number, self._input, self._named(tensors))

    def call(
        self,
        layer: str,
        number: int,
        order: int,
        arguments: tuple[TensorRef, ...],
        outputs: Sequence[tuple[str, Any]],
    ) -> None:
        """See `Store`."""
        self._writer.call(layer, number, self._input, order, arguments, self._named(outputs))

    def outputs(self, number: int, outputs: Sequence[tuple[str, Any]]) -> None:
        """Write the model's outputs for an input."""
        self._writer.outputs(number, self._named(outputs))

    def _named(self, tensors: Sequence[tuple[str, Any]]) -> list[Named]:
        return [self._one(path, tensor) for path, tensor in tensors]

    def _one(self, path: str, tensor: Any) -> Named:
        array = to_numpy(tensor)
        if tensor.is_inference():
            return Named(path, array, self._recent.by_values(array))
        return Named(path, array, self._recent.identity(tensor, array, tensor._version))


@dataclass
class _Running:
    """Layer whose call has begun and not ended."""

    name: str
    number: int
    arguments: Any
    # Replaced arguments: (the caller's tensor, the fed tensor, its version).
    fed: list[tuple[Any, Any, int]] = field(default_factory=list)


class Hooks:
    """Hooks on every module of a model, which pass its arguments and outputs to a store.

    Args:
        model: the model; a module that it has twice is known by its first name.
        store: destination of the tensors.
        forcing: replacements of arguments and outputs.

    Attributes:
        odd: layer → dtype of the first floating tensor whose dtype was not `expected`.
    """

    def __init__(
        self,
        model: nn.Module,
        store: Store,
        forcing: TorchForcing | None = None,
        expected: torch.dtype | None = None,
    ) -> None:
        self._model, self.store, self._forcing = model, store, forcing
        self._expected = expected
        self._met: dict[str, tuple[str | None, str]] = {}
        self._stack: list[_Running] = []
        self._counts: Counter[str] = Counter()
        self._order = 0
        self._input = 0
        self.odd: dict[str, str] = {}

    def begin(self, number: int) -> None:
        """Begin a pass of this input: calls are counted from 0."""
        self._input, self._order = number, 0
        self._counts.clear()
        self._stack.clear()

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Attach the hooks to the model in this context, without torch's fast path of attention, which skips
        them.
        """
        handles = [
            handle
            for name, module in self._model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)  # a ScriptModule takes no hooks
            for handle in (
                module.register_forward_pre_hook(self._before(name), with_kwargs=True),
                module.register_forward_hook(self._after(name), with_kwargs=True),
            )
        ]
        try:
            with slow_paths():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def declare(self, writer: DumpWriter) -> None:
        """Declare every module to the writer, including modules that were never called."""
        for layer in layers(self._model, self._met):
            writer.layer(layer)

    def _before(self, name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            number = self._counts[name]
            self._counts[name] += 1
            if name not in self._met:
                parent = self._stack[-1].name if self._stack else None
                self._met[name] = parent, frames.caller()
            tensors = call_leaves(args, kwargs)
            # The caller's own arguments: they are the only record of what the caller computed (`Forced`).
            running = _Running(name, number, self.store.given(name, number, tensors))
            if self._forcing is not None:
                new = self._forcing.feed(name, number, self._input, lambda: dict(tensors))
                args, kwargs = replaced(args, new), replaced(kwargs, new)
                running.fed = [
                    (tensor, new[path], new[path]._version)
                    for path, tensor in tensors
                    if path in new
                ]
            self._stack.append(running)
            return args, kwargs

        return hook

    def _after(self, name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            running = self._stack.pop()
            while running.name != name:  # an inner layer raised, and its caller continued
                running = self._stack.pop()
            outputs = list(leaves(output))
            self._note_dtypes(name, outputs)
            self.store.call(name, running.number, self._order, running.arguments, outputs)
            self._order += 1
            if self._forcing is None:
                return None
            new = self._forcing.answer(name, running.number, self._input, lambda: dict(outputs))
            new |= _carried_in_place(running.fed, outputs, new)
            return replaced(output, new)

        return hook

    def _note_dtypes(self, name: str, outputs: Sequence[tuple[str, Any]]) -> None:
        for _, tensor in outputs:
            if self._expected not in (None, tensor.dtype) and tensor.is_floating_point():
                self.odd.setdefault(name, str(tensor.dtype).removeprefix("torch."))


def _carried_in_place(
    fed: list[tuple[Any, Any, int]],
    outputs: Sequence[tuple[str, Any]],
    new: Mapping[str, Any],
) -> dict[str, Any]:
    """Copy what a layer wrote into its fed arguments to the caller's tensors, as without feeding.

    Returns:
        The caller's tensors for outputs that are arguments (`nn.ReLU(inplace=True)`).
    """
    same: dict[str, Any] = {}
    for original, stand_in, version in fed:
        if stand_in._version == version:
            continue
        paths = [path for path, tensor in outputs if tensor is stand_in]
        original.copy_(new.get(paths[0], stand_in) if paths else stand_in)
        same |= dict.fromkeys(paths, original)
    return same
