"""Results of the proof at another size: frozen values that the README and the reports show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from converters.graph.writing.model import Limits


@dataclass(frozen=True)
class FixedSize:
    """A size that the port holds to its value.

    Attributes:
        name: the setting, or the axis.
        value: the only one.
        why: what happens at another one.
    """

    name: str
    value: Any
    why: str


@dataclass(frozen=True)
class SecondSize:
    """The second size, at which the port agreed with its original.

    Attributes:
        build: makes a new model of the original at that size, with a seed.
        settings: the settings of the port there.
        inputs: what both were given.
    """

    build: Callable[[int], Any]
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Results at another size.

    Attributes:
        changed: name, value here, value there: all were other at once, and both sides agreed.
        held: settings that the configuration refuses to change.
        axes: (input, axis) → size: axes that the model refuses to take otherwise.
        lifted: bounds of the recording beyond which both sides agree.
        distance: relative L2 of the worst output there.
        rates: name, value here, value there: shares that training drops, which both sides changed alike.
        starts: name, value here, value there: numbers of initial values alone, with which `init` drew as new
            models of the original.
        lengths: name, value here, values with other numbers of entries at which both sides agreed.
        other_axes: (axes, size here, size there): axes of inputs that were recorded with one size, and
            that no setting decides; both sides agreed at the other one.
        unread: (setting, value, why) of the original: those that the configuration of the port lacks.
        error: why nothing was tried; "" otherwise.
        tied: (input, axis) → the setting that its size follows, as an expression: "n_mels", "2 * width".
        there: the second size; None: the port was not proven at one.
    """

    changed: tuple[tuple[str, Any, Any], ...] = ()
    held: tuple[FixedSize, ...] = ()
    axes: Mapping[tuple[str, int], int] = field(default_factory=dict)
    lifted: tuple[str, ...] = ()
    distance: float | None = None
    rates: tuple[tuple[str, Any, Any], ...] = ()
    starts: tuple[tuple[str, Any, Any], ...] = ()
    lengths: tuple[tuple[str, Any, tuple[Any, ...]], ...] = ()
    other_axes: tuple[tuple[str, int, int], ...] = ()
    unread: tuple[tuple[str, Any, str], ...] = ()
    error: str = ""
    tied: Mapping[tuple[str, int], str] = field(default_factory=dict)
    there: SecondSize | None = field(default=None, compare=False, repr=False)

    @property
    def free(self) -> tuple[str, ...]:
        """Axes that take other sizes than the recorded one, as reports say it."""
        return tuple(
            f"{axes}: recorded with {here}, proven with {there} too"
            for axes, here, there in self.other_axes
        )

    @property
    def limits(self) -> Limits:
        """Limits that the classes of the port enforce."""
        return Limits(
            {held.name: held.value for held in self.held},
            self.axes,
            frozenset(self.lifted),
            frozenset(name for name, *_ in self.lengths),
        )


def unproven(port: Any, why: str) -> Sizes:
    """All sizes held, as none other was tried.

    Args:
        port: what the compiler gave.
        why: the reason.
    """
    held = tuple(FixedSize(name, value, "not tried") for name, value in port.settings.items())
    axes = {
        (input_.name, axis): side
        for input_ in port.inputs
        for axis, side in enumerate(input_.shape)
        if isinstance(side, int) and not input_.fixed and not input_.optional
    }
    return Sizes(held=held, axes=axes, error=why)
