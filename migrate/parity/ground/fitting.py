"""What the passes of a Flax model found: which arrays are made of what, and where the models part."""

from __future__ import annotations

from dataclasses import dataclass

# Relative L2 that float32 leaves where all else is float64, with room for a few hundred roundings.
SINGLE = 1e-6


@dataclass(frozen=True)
class Difference:
    """A place where the models part.

    Attributes:
        layer: of Flax's model; "" for its outputs.
        called: `file.py:line` from which it is called.
        truth: the layer of torch's that it was taken for; "" for the outputs.
        after: the layer of Flax's before it that agreed; "" if it is the first.
        inside: whether it computes otherwise; else it is given something else.
        distance: relative L2; infinite where torch has no layer that is given the same.
        settings: of the two, where they differ; or how what is given does.
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
        """Whether float32's rounding is enough to explain it, and no setting is seen to differ."""
        return self.distance <= SINGLE and not self.settings

    def __str__(self) -> str:
        settings = f": {self.settings}" if self.settings else ""
        place = f", {self.called}" if self.called else ""
        if not self.layer:
            where = f"after {self.after}" if self.after else "in the whole model"
            return f"the outputs are {self.distance:.1e} apart ({where})"
        if self.inside:
            return f"{self.layer} computes otherwise than {self.truth}{settings}{place}"
        since = f", after {self.after}, which agrees" if self.after else ""
        return f"before {self.layer} (taken for {self.truth}){settings}{since}{place}"


@dataclass(frozen=True)
class Piece:
    """A piece of an array: an array of the plan, or a part of one, and its layout as text."""

    source: str
    layout: str


@dataclass(frozen=True)
class Array:
    """An array of the Flax model.

    Attributes:
        name: its path.
        pieces: what it is made of; several are stacked.
        axis: along which; None: there is one.
    """

    name: str
    pieces: tuple[Piece, ...]
    axis: int | None = None


@dataclass(frozen=True)
class Portion:
    """A piece of an array: a tensor of torch's, what of it (as text; "": all), and its layout as text."""

    key: str
    part: str
    layout: str


@dataclass(frozen=True)
class Made:
    """An array of the JAX model that was found element by element.

    Attributes:
        name: its path.
        pieces: what it is made of.
        join: how, as text.
    """

    name: str
    pieces: tuple[Portion, ...]
    join: str


@dataclass(frozen=True)
class Found:
    """What the passes of the Flax model found.

    Attributes:
        arrays: those that have a place.
        unplaced: arrays of Flax's for which torch has nothing: path, shape and the layer's place.
        unused: paths in the plan that are no array's.
        differences: in the order of execution.
        unseen: layers in which nothing can be seen (vmap).
        passes: how many were run.
        unsure: arrays that only the outputs confirm.
        layers: how many layers were found in torch's.
        single: whether the model computes in float32 where it could in float64.
        untried: whether orders of layers that look alike were left untried.
        made: those that have a place and were found element by element.
        heads: how the rows of heads differ from torch's, in words; "": they do not.
    """

    arrays: tuple[Array, ...]
    unplaced: tuple[str, ...]
    unused: tuple[str, ...]
    differences: tuple[Difference, ...]
    unseen: tuple[str, ...]
    passes: int
    unsure: tuple[str, ...]
    layers: int
    single: bool = False
    untried: bool = False
    made: tuple[Made, ...] = ()
    heads: str = ""
