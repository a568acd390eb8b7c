"""The numbers among the arguments of a constructor, and other values to try for each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from converters.graph.recording.libraries import is_user_file

Number = int | float
Value = Number | tuple[Number, ...]
_DEPTH = 4
# What says nothing about the computation of a model.
_NO_SIZE = (
    *("initializer_range", "initializer_factor", "transformers_version", "problem_type"),
    *("bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id", "mask_token_id"),
    *("max_length", "min_length", "num_beams", "chunk_size_feed_forward", "return_dict"),
    *("top_p", "length_penalty", "repetition_penalty", "num_return_sequences"),
)
# Names of classes, of which `num_labels` is the number.
_LABELS = ("id2label", "label2id")
# From here on a number is a table's length: a little more costs least.
_LARGE = 2048
_SMALL = 8
# Below, a number is what keeps a division from zero.
_EPSILON = 1e-3


@dataclass(frozen=True)
class Leaf:
    """A number, or several, among the arguments of a constructor.

    Attributes:
        path: the argument, and the keys and attributes below it.
        value: the number; a tuple for a sequence of them.
        apart: whether another leaf has its name, so that the entry above it is a part of this.
    """

    path: tuple[str, ...]
    value: Value
    apart: bool = False

    @property
    def name(self) -> str:
        """The name in a configuration: "text_hidden_size" of `config.text_config.hidden_size`."""
        parts = [
            part.removesuffix("_config") for part in self.path[1:-1] if part.endswith("_config")
        ]
        above = self.path[-2:-1] if self.apart and not self.path[-2].endswith("_config") else ()
        return "_".join((*parts, *above, self.path[-1].strip("_")))

    @property
    def is_whole(self) -> bool:
        """Whether it is an integer."""
        return isinstance(self.value, int)


def leaves(arguments: Mapping[str, Any], *, every: bool = False) -> tuple[Leaf, ...]:
    """The numbers among arguments: arguments themselves, and attributes of configurations.

    Args:
        arguments: the arguments.
        every: also those that say nothing about the computation of a model.
    """
    leaves = [
        leaf
        for name, value in arguments.items()
        for leaf in _below((name,), value, 0)
        if (every or leaf.name not in _NO_SIZE) and leaf.name.isidentifier()
    ]
    names = Counter(leaf.name for leaf in leaves)
    return tuple(
        replace(leaf, apart=len(leaf.path) > 2 and names[leaf.name] > 1) for leaf in leaves
    )


def choices(arguments: Mapping[str, Any]) -> tuple[Leaf, ...]:
    """The values that are True or False among arguments that the user wrote.

    They are arguments themselves and attributes of the user's configurations; those of a library are many,
    and mostly none of a model's form.
    """
    return tuple(
        leaf
        for name, value in arguments.items()
        for leaf in _below((name,), value, 0, choices=True)
        if leaf.name.isidentifier()
    )


def _is_library(value: Any) -> bool:
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    plain = isinstance(value, Mapping | list | tuple)
    return not plain and file is not None and not is_user_file(file)


def _below(
    path: tuple[str, ...], value: Any, depth: int, *, choices: bool = False
) -> Iterator[Leaf]:
    if isinstance(value, bool) or depth > _DEPTH:
        if choices and isinstance(value, bool):
            yield Leaf(path, value)
        return
    if choices:
        inner_values = {} if _is_library(value) else _entries(value)
        for name, inner in inner_values.items():
            yield from _below((*path, name), inner, depth + 1, choices=True)
    elif isinstance(value, int | float):
        yield Leaf(path, value)
    elif isinstance(value, list | tuple):
        if value and all(type(element) in (int, float) for element in value):
            yield Leaf(path, tuple(value))
    else:
        entries = _entries(value)
        if "id2label" in entries and isinstance(getattr(value, "num_labels", None), int):
            yield Leaf((*path, "num_labels"), value.num_labels)  # as transformers counts them
            entries = {key: element for key, element in entries.items() if key not in _LABELS}
        for name, inner in entries.items():
            yield from _below((*path, name), inner, depth + 1)


def _entries(value: Any) -> Mapping[str, Any]:
    """The entries of a configuration: of a mapping, or the attributes of an object."""
    import torch

    if isinstance(value, Mapping):
        held: Mapping[Any, Any] = value
    elif (
        isinstance(value, type | torch.nn.Module | torch.Tensor | torch.dtype)
        or callable(value)
        or not hasattr(value, "__dict__")
    ):
        return {}
    else:
        held = vars(value)
    return {
        name: element
        for name, element in held.items()
        if isinstance(name, str) and name[:1] not in ("", "_")
    }


def change(arguments: dict[str, Any], leaf: Leaf, value: Value) -> None:
    """Put another value into (copied) arguments.

    A list of words with as many entries as the number says (the kinds of layers) becomes as long as the new
    one.
    """
    holder: Any = arguments
    for name in leaf.path[:-1]:
        holder = holder[name] if isinstance(holder, Mapping) else getattr(holder, name)
    name = leaf.path[-1]
    old = holder[name] if isinstance(holder, Mapping) else getattr(holder, name)
    if isinstance(value, int) and isinstance(leaf.value, int) and leaf.value > 1:
        for other, listed in _entries(holder).items():
            kinds = isinstance(listed, list) and all(isinstance(element, str) for element in listed)
            if kinds and len(listed) == leaf.value:
                longer = [listed[place % len(listed)] for place in range(value)]
                _put(holder, other, longer)
    _put(holder, name, list(value) if isinstance(old, list) and isinstance(value, tuple) else value)


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, dict):
        holder[name] = value
        return
    try:
        setattr(holder, name, value)
    except AttributeError:  # a frozen dataclass
        object.__setattr__(holder, name, value)


def candidates(leaf: Leaf, upwards: bool) -> tuple[Value, ...]:
    """Other values of a leaf to try, the best first.

    Args:
        leaf: the number.
        upwards: whether larger ones come first. Neighbors in a configuration go different ways, so that what
            is computed of two of them is another number, too.
    """
    value = leaf.value
    if isinstance(value, tuple):
        return tuple(dict.fromkeys(_of_several(value, upwards)))
    if isinstance(value, float):
        if value == 0.0:
            return ()
        if value <= _EPSILON:
            return (float(f"{40 * value:.12g}") if value > 1e-9 else 1e-4, 1e-2)
        factors = (1.5, 0.5) if upwards else (0.75, 1.25)
        return tuple(float(f"{value * factor:.12g}") for factor in factors)
    return tuple(
        number
        for number in dict.fromkeys(_of_whole(value, upwards))
        if number != value and number > 0
    )


def other_lengths(leaf: Leaf) -> tuple[tuple[Value, ...], ...]:
    """Other values of a sequence with more entries, and those with fewer; the best of each first."""
    assert isinstance(leaf.value, tuple)
    first, last = leaf.value[0], leaf.value[-1]
    longer = tuple(dict.fromkeys([(*leaf.value, first), (*leaf.value, last)]))
    return longer, ((leaf.value[:-1],) if len(leaf.value) > 1 else ())


def _of_whole(value: int, upwards: bool) -> Iterator[int]:
    if value <= 0:
        return
    if value >= _LARGE:
        more, less = [value + 8, 2 * value], [value // 2, value // 4, value // 16, 64, 8, 3]
    elif value <= _SMALL:
        more = [value + 1, 2 * value, value + 2, 3 * value]
        less = [number for number in (value - 1, value // 2) if number > 1] + [*more, 1]
    else:
        half = [value + value // 2] if value % 2 == 0 else []
        more = [*half, 2 * value, 3 * value, value + 2, value + 1]
        less = [value // 2, value // 4, value // 3, value - 1, 3, 2]
    yield from (*more, *less) if upwards else (*less, *more)


def _of_several(values: tuple[Number, ...], upwards: bool) -> Iterator[tuple[Number, ...]]:
    """Each entry another one, all of them in the same way."""
    if not all(isinstance(number, int) for number in values):
        yield tuple(float(f"{1.5 * number:.12g}") for number in values)
        return
    whole = [int(number) for number in values]
    ways = [
        tuple(number + number // 2 if number % 2 == 0 else 2 * number for number in whole),
        tuple(2 * number for number in whole),
        tuple(number + 1 for number in whole),
        tuple(max(1, number // 2) for number in whole),
        tuple(number + (place % 2) for place, number in enumerate(whole)),
    ]
    small = max(whole) <= _SMALL
    order = (2, 4, 1, 3, 0) if small else ((0, 1, 3, 2) if upwards else (3, 1, 0, 2))
    yield from (ways[place] for place in order if ways[place] != values)
