"""Alignment: pairs of layers of a side and the truth, and the layouts of their tensors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TensorPair:
    """Tensor of a side and its partner in the truth.

    Attributes:
        mine, truth: paths of the two tensors (`dump.TensorRef.path`).
        axes: `numpy.transpose(truth, axes)` has the side's axis order; None: both have the same order.
        shape: shape that the truth is reshaped to after that (heads apart or together, a batch of one);
            None: no reshape.
        split: shape that the truth is reshaped to before all that (heads apart and then moved; an image
            flattened channels first); None: no reshape.
    """

    mine: str
    truth: str
    axes: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    split: tuple[int, ...] | None = None

    def as_mine(self, array: Any) -> Any:
        """Return the truth's array (numpy) in the side's layout."""
        if self.split is not None:
            array = array.reshape(self.split)
        if self.axes is not None:
            array = array.transpose(self.axes)
        return array if self.shape is None else array.reshape(self.shape)


@dataclass(frozen=True)
class Pair:
    """Layer of a side, and the layer of the truth that computes the same.

    Attributes:
        layer, truth: their names.
        how: evidence for the pair: "same model", "file", "weights", "order", "fingerprint".
        number, truth_number: the paired call of each (a scanned block calls one layer many
            times, torch has as many layers); None: all calls, paired by number.
        arguments, outputs: corresponding tensors. Arguments without a partner are not listed: such a
            layer cannot be fed with the truth's inputs. Both are empty for a dropout or identity that
            returns its argument; such a layer is neither fed nor judged.
    """

    layer: str
    truth: str
    how: str
    number: int | None = None
    truth_number: int | None = None
    arguments: tuple[TensorPair, ...] = ()
    outputs: tuple[TensorPair, ...] = ()

    def truth_call(self, number: int) -> int | None:
        """Number of the truth's call for the side's call; None if this pair does not cover it."""
        if self.number is None:
            return number
        return self.truth_number if number == self.number else None


@dataclass(frozen=True)
class Apart:
    """Output of a model that is not compared.

    Attributes:
        truth, mine: its path in the truth and on the side; None: there is no such output.
        why: how the two differ, or which side alone has the output.
        remedy: option to pass if it is the same nevertheless, or to leave it out; "" if there is none.
    """

    truth: str | None
    mine: str | None
    why: str
    remedy: str


@dataclass(frozen=True)
class OutputPairs:
    """Outputs of two models.

    Attributes:
        pairs: compared outputs, unchanged or by the user's rules.
        apart: outputs that are not compared.
        notes: outputs left out by name, and outputs that only seem to differ; one a line.
    """

    pairs: tuple[TensorPair, ...] = ()
    apart: tuple[Apart, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerAlignment:
    """Alignment of the layers of a side with those of the truth.

    Attributes:
        pairs: the layers with a partner.
        outputs: the outputs of the whole model that are compared.
        apart, output_notes: as in `OutputPairs`; they are not sent to the process of a side.
        alone, truth_alone: names of the layers without a partner, on either side.
        notes: what is uncertain, one a line.
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
        """Pair for this call of a side's layer, and the number of the truth's call."""
        for pair in self._by_layer.get(layer, ()):
            call = pair.truth_call(number)
            if call is not None:
                return pair, call
        return None

    def to_json(self) -> str:
        """Serialize for the process of a side."""
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
    def from_json(text: str) -> LayerAlignment:
        """Read what `to_json` wrote."""
        value = json.loads(text)
        pairs = tuple(
            Pair(**pair | {part: _tensors(pair[part]) for part in ("arguments", "outputs")})
            for pair in value["pairs"]
        )
        names = {name: tuple(value[name]) for name in ("alone", "truth_alone", "notes")}
        return LayerAlignment(pairs, _tensors(value["outputs"]), **names)


def _tensors(values: list[Mapping[str, Any]]) -> tuple[TensorPair, ...]:
    return tuple(
        TensorPair(
            pair["mine"],
            pair["truth"],
            **{
                part: None if pair[part] is None else tuple(pair[part])
                for part in ("axes", "shape", "split")
            },
        )
        for pair in values
    )
