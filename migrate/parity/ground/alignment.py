"""Which layer of a side is which of the truth, and how their tensors lie to each other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TensorPair:
    """A tensor of a side and the truth's.

    Attributes:
        mine, truth: paths of the two (`dump.TensorRef.path`).
        axes: `numpy.transpose(truth, axes)` lies as the side's does; None: they lie alike.
        shape: what the truth is reshaped to after that (heads apart or together, a batch of one); None:
            not.
        split: what the truth is reshaped to before all that (heads apart and then moved; an image that was
            flattened channels first); None: not.
    """

    mine: str
    truth: str
    axes: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    split: tuple[int, ...] | None = None

    def as_mine(self, array: Any) -> Any:
        """The truth's array (numpy) as the side's lies."""
        if self.split is not None:
            array = array.reshape(self.split)
        if self.axes is not None:
            array = array.transpose(self.axes)
        return array if self.shape is None else array.reshape(self.shape)


@dataclass(frozen=True)
class Pair:
    """A layer of a side and the one of the truth that computes the same.

    Attributes:
        layer, truth: their names.
        how: what speaks for it: "same model", "file", "weights", "order", "fingerprint".
        number, truth_number: the one call of each that is meant (a scanned block calls one layer many
            times, torch has as many layers); None: every call, each with the truth's of that number.
        arguments, outputs: what of them corresponds. Arguments without a partner are not listed: such a
            layer cannot be fed with the truth's inputs. Both are empty of a dropout or identity that hands
            its argument on, which is neither fed nor judged.
    """

    layer: str
    truth: str
    how: str
    number: int | None = None
    truth_number: int | None = None
    arguments: tuple[TensorPair, ...] = ()
    outputs: tuple[TensorPair, ...] = ()

    def truth_call(self, number: int) -> int | None:
        """The number of the truth's call for the side's; None if this pair does not speak of it."""
        if self.number is None:
            return number
        return self.truth_number if number == self.number else None


@dataclass(frozen=True)
class Apart:
    """An output of a model that is compared with none.

    Attributes:
        truth, mine: its path in the truth and at the side; None: that has it not.
        why: how the two differ, or who has it alone.
        remedy: what to say where it is the same nevertheless, or is to be left out; "" nothing.
    """

    truth: str | None
    mine: str | None
    why: str
    remedy: str


@dataclass(frozen=True)
class OutputPairs:
    """The outputs of two models.

    Attributes:
        pairs: what is compared, as it is or as it was said.
        apart: what is not.
        notes: what was left out by name, and what only seems to differ; a line each.
    """

    pairs: tuple[TensorPair, ...] = ()
    apart: tuple[Apart, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alignment:
    """How the layers of one side lie to those of the truth.

    Attributes:
        pairs: the layers with a partner.
        outputs: the outputs of the whole model that are compared.
        apart, output_notes: as of `OutputPairs`; the process of a side is not told.
        alone, truth_alone: names of the layers without one, on either side.
        notes: what was not certain, a line each.
    """

    pairs: tuple[Pair, ...]
    outputs: tuple[TensorPair, ...] = ()
    alone: tuple[str, ...] = ()
    truth_alone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    apart: tuple[Apart, ...] = ()
    output_notes: tuple[str, ...] = ()
    _by_layer: dict[str, list[Pair]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for pair in self.pairs:
            self._by_layer.setdefault(pair.layer, []).append(pair)

    def pair(self, layer: str, number: int) -> tuple[Pair, int] | None:
        """The pair that speaks of this call of a side's layer, and the number of the truth's call."""
        for pair in self._by_layer.get(layer, ()):
            call = pair.truth_call(number)
            if call is not None:
                return pair, call
        return None

    def to_json(self) -> str:
        """As text, for the process of a side."""
        return json.dumps(
            {
                "pairs": [dataclasses.asdict(pair) for pair in self.pairs],
                "outputs": [dataclasses.asdict(pair) for pair in self.outputs],
                "alone": self.alone,
                "truth_alone": self.truth_alone,
                "notes": self.notes,
            }
        )

    @staticmethod
    def from_json(text: str) -> Alignment:
        """Of what `to_json` wrote."""
        value = json.loads(text)
        pairs = tuple(
            Pair(**one | {part: _tensors(one[part]) for part in ("arguments", "outputs")})
            for one in value["pairs"]
        )
        names = {name: tuple(value[name]) for name in ("alone", "truth_alone", "notes")}
        return Alignment(pairs, _tensors(value["outputs"]), **names)


def _tensors(values: list[Mapping[str, Any]]) -> tuple[TensorPair, ...]:
    return tuple(
        TensorPair(
            one["mine"],
            one["truth"],
            **{
                part: None if one[part] is None else tuple(one[part])
                for part in ("axes", "shape", "split")
            },
        )
        for one in values
    )
