"""Writes the calls of a JAX model's layers as they end, and feeds them with the truth's tensors.

It is asked by what sees the calls (`capture.linen`, `capture.nnx`) and knows nothing of modules.
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
class Seen:
    """A layer that is being called.

    Attributes:
        name: its name.
        key: equal for the same module, also where it is called within itself (`super().__call__`).
        describe: gives all that is known of it, once it was called; the parent's name is given.
        held: gives the arrays that lie right in it, by name, as this call sees them (a scanned block its own
            slices).
        take: puts others in their place, by name, for the calls to come; names of layers below it may be
            among them.
    """

    name: str
    key: Any
    describe: Callable[[str | None], Layer]
    held: Callable[[], Mapping[str, Any]]
    take: Callable[[Mapping[str, Any]], None]


class Watcher(Protocol):
    """What is told of each call of a layer: it runs it, and says what its caller goes on with."""

    @property
    def inside(self) -> Seen | None:
        """The layer whose call runs now; None outside of the model."""

    def call(
        self, seen: Seen, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a layer's call."""


class Recorder:
    """The calls of all inputs into one dump.

    Args:
        writer: of the dump.
        feed: the truth's tensors, if layers are to be fed with them.
        dtype: that floating tensors are expected to have.

    Attributes:
        renamed: names of the model's own arguments → the inputs' names, where they differ.
        recent: knows tensors again.
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
        self._stack: list[Seen] = []
        self._declared: set[str] = set()
        self._other_dtypes: dict[str, str] = {}
        # Layers that were run on stand-ins → whether those were vmap's. Others (a scan tries its body) may
        # come again with values.
        self._unseen: dict[str, bool] = {}
        self.start(0)

    def start(self, input: int) -> None:  # noqa: A002
        """Begin with an input."""
        self._input = input
        self._order = 0
        self._numbers: dict[str, int] = {}
        self._stack.clear()
        self._abstract = 0

    @property
    def inside(self) -> Seen | None:
        """The layer whose call runs now; None outside of the model."""
        return self._stack[-1] if self._stack else None

    def call(
        self, seen: Seen, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a layer's call, and write it; give what its caller goes on with."""
        if self._stack and self._stack[-1].key == seen.key:
            return run(*args, **kwargs)
        if self._abstract or is_traced((args, kwargs)):
            return self._pass_through(seen, run, args, kwargs)
        number = self._numbers.get(seen.name, 0)
        self._numbers[seen.name] = number + 1
        given = self._arguments(args, kwargs, seen)
        if self._feed is not None:
            args, kwargs = self._fed(seen, number, args, kwargs)
        parent = self._stack[-1].name if self._stack else None
        self._stack.append(seen)
        try:
            made = run(*args, **kwargs)
        finally:
            self._stack.pop()
        if is_traced(made):
            self._numbers[seen.name] = number
            self._unseen[seen.name] = self._unseen.get(seen.name, False) or is_batched(made)
            return made
        self._write(seen, parent, number, given, made)
        if self._feed is None:
            return made
        return self._feed.outputs(seen.name, number, self._input, made)

    def _pass_through(
        self, seen: Seen, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call on stand-ins; what it calls may well have values there, but is run again later."""
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
        self, seen: Seen, parent: str | None, number: int, given: Mapping[str, Any], made: Any
    ) -> None:
        if seen.name not in self._declared:
            self._declared.add(seen.name)
            self._writer.layer(seen.describe(parent))
        outputs = tensors(made)
        for array in outputs.values():
            if is_floating(array.dtype) and array.dtype.name != self._dtype:
                self._other_dtypes.setdefault(seen.name, array.dtype.name)
        # Arrays of JAX do not change: what was given may be taken now.
        at = seen.name, number, self._input
        refs = self._writer.given(*at, named(given, self.recent))
        self._writer.call(*at, self._order, refs, named(outputs, self.recent))
        self._order += 1

    def _arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Seen
    ) -> dict[str, Any]:
        """What it is called with; the model itself by the names of the inputs."""
        found = tensors(args) | tensors(kwargs)
        if seen.name:
            return found
        return {self._outer_name(path): array for path, array in found.items()}

    def _outer_name(self, path: str) -> str:
        first, dot, rest = path.partition(".")
        return f"{self.renamed.get(first, first)}{dot}{rest}"

    def _fed(
        self, seen: Seen, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        assert self._feed is not None
        named_by = {name: name for name in kwargs}
        if not seen.name:
            named_by = {name: self.renamed.get(name, name) for name in kwargs}
        together: dict[str, Any] = {str(index): one for index, one in enumerate(args)}
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
    """Whether a setting of a layer says what it computes in plain values, and the value."""
    if value is None or isinstance(value, bool | int | float | str):
        return True, value
    if isinstance(value, list | tuple):
        parts = [_plain(one) for one in value]
        return all(fits for fits, _ in parts), [one for _, one in parts]
    if isinstance(value, type) or callable(value):
        name = getattr(value, "__name__", None) or getattr(
            getattr(value, "func", None), "__name__", None
        )
        return name is not None, name
    return False, None


def settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the attributes that are plain values; functions and dtypes by name.

    How weights are drawn (`kernel_init`) decides nothing once they are there.
    """
    found = {}
    for name, value in values.items():
        if name.endswith("_init"):
            continue
        fits, said = _plain(value)
        if fits:
            found[name] = said
    return found
