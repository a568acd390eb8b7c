"""Findings of the passes of a Flax model: origins of its arrays, and divergences of the models."""

from __future__ import annotations

from dataclasses import dataclass

# Relative L2 that float32 leaves where all else is float64, with a margin for a few hundred roundings.
SINGLE = 1e-6


@dataclass(frozen=True)
class ModelDifference:
    """Divergence of the models.

    Attributes:
        layer: layer of Flax's model; "" for its outputs.
        called: `file.py:line` of its call.
        truth: the layer of torch's model that it was matched with; "" for the outputs.
        after: the layer of Flax's model before it that agreed; "" if it is the first.
        inside: whether its computation differs; otherwise its inputs differ.
        distance: relative L2; infinite where torch has no layer with the same inputs.
        settings: differences of the two layers' settings, or of their inputs.
    """

    layer: str
    called: str
    truth: str
    after: str
    inside: bool
    distance: float
    settings: str = ""

    @property
    def rounding(self) -> bool:
        """Whether float32 rounding explains the difference and no setting differs."""
        return self.distance <= SINGLE and not self.settings

    def __str__(self) -> str:
        settings = f": {self.settings}" if self.settings else ""
        place = f", {self.called}" if self.called else ""
        if not self.layer:
            where = f"after {self.after}" if self.after else "in the whole model"
            return f"the outputs are {self.distance:.1e} apart ({where})"
        if self.inside and self.rounding:
            return f"{self.layer} differs from {self.truth} by rounding{place}"
        if self.inside:
            return f"{self.layer} computes otherwise than {self.truth}{settings}{place}"
        since = f", after {self.after}, which agrees" if self.after else ""
        return f"before {self.layer} (taken for {self.truth}){settings}{since}{place}"


@dataclass(frozen=True)
class Piece:
    """Piece of an array: an array of the plan, or a part of one, and its layout as text."""

    source: str
    layout: str


@dataclass(frozen=True)
class FlaxArray:
    """Array of the Flax model.

    Attributes:
        name: its path.
        pieces: its pieces; several are stacked.
        axis: axis along which they are stacked; None: there is one piece.
    """

    name: str
    pieces: tuple[Piece, ...]
    axis: int | None = None


@dataclass(frozen=True)
class Portion:
    """Piece of an array: a torch tensor, the part of it (as text; "": all), and its layout as text."""

    key: str
    part: str
    layout: str


@dataclass(frozen=True)
class AssembledArray:
    """Array of the JAX model that was matched element by element.

    Attributes:
        name: its path.
        pieces: its pieces.
        join: how the pieces are joined, as text.
    """

    name: str
    pieces: tuple[Portion, ...]
    join: str


@dataclass(frozen=True)
class ComputedArray:
    """Array that both models compute, so that no checkpoint holds it: a table of positions.

    Attributes:
        name: its path in the JAX model.
        key: torch's name of the buffer.
    """

    name: str
    key: str


@dataclass(frozen=True)
class FittingResult:
    """Findings of the passes of the Flax model.

    Attributes:
        arrays: arrays with a known origin.
        unplaced: arrays of Flax's model without a counterpart in torch: path, shape and location of the
            layer.
        unused: paths in the plan that belong to no array.
        differences: divergences, in the order of execution.
        unseen: layers whose insides cannot be observed (vmap).
        passes: number of passes.
        unsure: arrays that only the outputs confirm.
        layers: number of layers matched with torch's.
        single: whether the model computes in float32 where it could in float64.
        untried: whether orders of layers that look alike were left untried.
        assembled: arrays whose origin was found element by element.
        computed: arrays that both models compute, with equal values.
        heads: how the rows of heads differ from torch's, in words; "": they do not.
    """

    arrays: tuple[FlaxArray, ...]
    unplaced: tuple[str, ...]
    unused: tuple[str, ...]
    differences: tuple[ModelDifference, ...]
    unseen: tuple[str, ...]
    passes: int
    unsure: tuple[str, ...]
    layers: int
    single: bool = False
    untried: bool = False
    assembled: tuple[AssembledArray, ...] = ()
    computed: tuple[ComputedArray, ...] = ()
    heads: str = ""
