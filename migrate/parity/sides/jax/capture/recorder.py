"""Record the calls of a JAX model's layers as they end, and feed the layers with the truth's tensors.

`capture.linen` and `capture.nnx` observe the calls; this module is independent of module classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from migrate.parity.dump.dump import Layer
from migrate.parity.dump.recent import Recent
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.sides.jax.capture.forced import JaxForcing
from migrate.parity.sides.jax.capture.values import (
    is_batched,
    is_floating,
    is_traced,
    named,
    tensors,
)

_SHOWN = 3


@dataclass(frozen=True)
class CalledLayer:
    """Layer that is being called.

    Attributes:
        name: its name.
        key: equal for the same module, even if it is called within itself (`super().__call__`).
        describe: returns the description of the layer after its call, for the name of its parent.
        held: returns the layer's own arrays by name, as this call sees them (a scanned block its own slices).
        take: replaces arrays by name for later calls; names of layers below may be among them.
    """

    name: str
    key: Any
    describe: Callable[[str | None], Layer]
    held: Callable[[], Mapping[str, Any]]
    take: Callable[[Mapping[str, Any]], None]


class Watcher(Protocol):
    """Observer of layers: runs each call, and returns the value with which the caller continues."""

    @property
    def inside(self) -> CalledLayer | None:
        """Layer whose call is running; None outside the model."""

    def call(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a layer's call."""


class LayerRecorder:
    """Recorder of the calls of all inputs in a dump.

    Args:
        writer: writer of the dump.
        feed: the truth's tensors, if layers are to be fed with them.
        dtype: expected dtype of floating tensors.

    Attributes:
        renamed: names of the model's own arguments → names of the inputs, where they differ.
        recent: recognizes recurring tensors.
    """

    def __init__(
        self,
        writer: DumpWriter,
        feed: JaxForcing | None,
        dtype: str,
    ) -> None:
        self._writer, self._feed, self._dtype = writer, feed, dtype
        self.recent = Recent(writer.identity)
        self.renamed: Mapping[str, str] = {}
        self._stack: list[CalledLayer] = []
        self._declared: set[str] = set()
        self._other_dtypes: dict[str, str] = {}
        # Layers that ran on tracers → whether these were vmap's. With other tracers (a scan tries its body)
        # the layers may come again with values.
        self._unseen: dict[str, bool] = {}
        self.start(0)

    def start(self, input: int) -> None:  # noqa: A002
        """Begin an input."""
        self._input = input
        self._order = 0
        self._numbers: dict[str, int] = {}
        self._stack.clear()
        self._abstract = 0

    @property
    def inside(self) -> CalledLayer | None:
        """Layer whose call is running; None outside the model."""
        return self._stack[-1] if self._stack else None

    def call(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a layer's call and write it; return the value with which its caller continues."""
        if self._stack and self._stack[-1].key == seen.key:
            return run(*args, **kwargs)
        if self._abstract or is_traced((args, kwargs)):
            return self._pass_through(seen, run, args, kwargs)
        number = self._numbers.get(seen.name, 0)
        self._numbers[seen.name] = number + 1
        arguments = self._arguments(args, kwargs, seen)
        if self._feed is not None:
            args, kwargs = self._fed(seen, number, args, kwargs)
        parent = self._stack[-1].name if self._stack else None
        self._stack.append(seen)
        try:
            outputs = run(*args, **kwargs)
        finally:
            self._stack.pop()
        if is_traced(outputs):
            self._numbers[seen.name] = number
            self._unseen[seen.name] = self._unseen.get(seen.name, False) or is_batched(outputs)
            return outputs
        self._write(seen, parent, number, arguments, outputs)
        if self._feed is None:
            return outputs
        return self._feed.outputs(seen.name, number, self._input, outputs)

    def _pass_through(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a call on tracers; inner calls may have values, but run again later."""
        self._unseen[seen.name] = self._unseen.get(seen.name, False) or is_batched((args, kwargs))
        self._abstract += 1
        try:
            return run(*args, **kwargs)
        finally:
            self._abstract -= 1

    def finish(self) -> None:
        """Write the notes."""
        lost = [
            name for name, mapped in self._unseen.items() if mapped or name not in self._declared
        ]
        if lost:
            self._writer.note(
                f"{_some(lost)}: called inside a transformation (vmap) that shows no values; "
                "these calls were not captured"
            )
        if self._other_dtypes:
            layers = [
                f"{name or 'the model'} ({dtype})" for name, dtype in self._other_dtypes.items()
            ]
            self._writer.note(f"not in {self._dtype}: {_some(layers)}")
        for note in self._feed.notes if self._feed is not None else ():
            self._writer.note(note)

    def _write(
        self,
        seen: CalledLayer,
        parent: str | None,
        number: int,
        arguments: Mapping[str, Any],
        result: Any,
    ) -> None:
        if seen.name not in self._declared:
            self._declared.add(seen.name)
            self._writer.layer(seen.describe(parent))
        outputs = tensors(result)
        for array in outputs.values():
            if is_floating(array.dtype) and array.dtype.name != self._dtype:
                self._other_dtypes.setdefault(seen.name, array.dtype.name)
        # JAX arrays are immutable: the arguments can be written after the call.
        at = seen.name, number, self._input
        refs = self._writer.given(*at, named(arguments, self.recent))
        self._writer.call(*at, self._order, refs, named(outputs, self.recent))
        self._order += 1

    def _arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], seen: CalledLayer
    ) -> dict[str, Any]:
        """Arguments of a call by path; for the model itself, by the names of the inputs."""
        by_path = tensors(args) | tensors(kwargs)
        if seen.name:
            return by_path
        return {self._outer_name(path): array for path, array in by_path.items()}

    def _outer_name(self, path: str) -> str:
        first, dot, rest = path.partition(".")
        return f"{self.renamed.get(first, first)}{dot}{rest}"

    def _fed(
        self, seen: CalledLayer, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert self._feed is not None
        named_by = {name: name for name in kwargs}
        if not seen.name:
            named_by = {name: self.renamed.get(name, name) for name in kwargs}
        together: dict[str, Any] = {str(index): argument for index, argument in enumerate(args)}
        together |= {named_by[name]: value for name, value in kwargs.items()}
        new = self._feed.arguments(seen.name, number, self._input, together)
        count = len(args)
        return (
            tuple(new[str(index)] for index in range(count)),
            {name: new[named_by[name]] for name in kwargs},
        )


def _some(names: list[str]) -> str:
    shown = ", ".join(name or "the model" for name in names[:_SHOWN])
    rest = len(names) - _SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown


def _plain(value: Any) -> tuple[bool, Any]:
    """Whether a layer's setting consists of plain values, and that value."""
    if value is None or isinstance(value, bool | int | float | str):
        return True, value
    if isinstance(value, list | tuple):
        parts = [_plain(element) for element in value]
        return all(fits for fits, _ in parts), [part for _, part in parts]
    if isinstance(value, type) or callable(value):
        name = getattr(value, "__name__", None) or getattr(
            getattr(value, "func", None), "__name__", None
        )
        return name is not None, name
    return False, None


def settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Select the attributes that are plain values; functions and dtypes by name.

    The initialization of weights (`kernel_init`) is irrelevant once they exist.
    """
    settings = {}
    for name, value in values.items():
        if name.endswith("_init"):
            continue
        fits, said = _plain(value)
        if fits:
            settings[name] = said
    return settings
