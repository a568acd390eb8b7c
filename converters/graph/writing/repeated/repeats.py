"""Options of a port for large models: scanned layers, layers computed again, kernels of attention."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from converters.graph.expression import NOISE
from converters.graph.recording.trace import GraphError
from converters.graph.writing.model import Model
from converters.graph.writing.repeated.remat import POLICIES, with_remat
from converters.graph.writing.repeated.scan import with_scans
from converters.graph.writing.repeated.stacks import LayerStack

# Everything is kept for the backward pass, and nothing computed again.
ALL = "all"
KEPT = (*POLICIES, ALL)


@dataclass(frozen=True)
class Repeats:
    """Options of repeated layers and attention.

    Attributes:
        attention: default implementation of attention, of `IMPLEMENTATIONS`; "": no choice is written.
        scan: whether they are scanned, with stacked weights.
        remat: what is kept of them for the backward pass, of `KEPT`.
    """

    scan: bool = False
    remat: str = ALL
    attention: str = ""


@dataclass(frozen=True)
class Repeated:
    """A model with its repeated layers as asked.

    Attributes:
        model: its classes.
        stacks: lists of layers whose weights are stacked.
        notes: what else to know.
    """

    model: Model
    stacks: tuple[LayerStack, ...] = ()
    notes: tuple[str, ...] = ()


def with_repeats(model: Model, repeats: Repeats, streams: Collection[str]) -> Repeated:
    """Write the repeated layers of a model as asked.

    Args:
        model: the classes.
        repeats: what is asked.
        streams: streams of random numbers that the model draws from.

    Raises:
        GraphError: the model has no layers for which this can be done.
    """
    original = model
    notes: list[str] = []
    if repeats.remat != ALL:
        model, left = with_remat(original, repeats.remat)
        if model.classes == original.classes:
            raise GraphError(f"--remat {repeats.remat}: {_none(left)}", "leave --remat out")
        notes += [f"--remat does not wrap {name}: {why}" for name, why in left.items()]
    if not repeats.scan:
        return Repeated(model, notes=tuple(notes))
    if NOISE in streams:
        raise GraphError(
            "--scan: the model draws random numbers in its forward", "leave --scan out"
        )
    scanned = with_scans(model, original)
    if not scanned.lists:
        raise GraphError(f"--scan: {_none(scanned.left)}", "leave --scan out")
    notes += [f"not scanned: {name}: {why}" for name, why in scanned.left.items()]
    return Repeated(scanned.model, scanned.stacks, tuple(notes))


def _none(left: Mapping[str, str]) -> str:
    said = "; ".join(f"{name}: {why}" for name, why in left.items())
    return said or "the model has no list of layers that are called one after the other"
