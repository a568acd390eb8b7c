"""Padded batches, on which a port that takes a mask is compared in addition to the given inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
_MASK, _POSITIONS, _TOKENS = "attention_mask", "position_ids", "input_ids"


def padded_batches(arrays: Arrays, arguments: Sequence[Any]) -> dict[str, dict[str, Array]]:
    """An input as a batch that is padded on the left, on the right, and with a row of padding alone.

    Each row has another length. Positions are given beside a mask, counted from its first token.
    A mask stays as it is where the port holds for its values only. Masks of attentions may have any name.
    Those mean what their model makes of them, so a row of ones is a batch too: it is the padding where True
    says "ignore".

    Args:
        arrays: the input.
        arguments: the arguments of the port.
    """
    arguments = [argument for argument in arguments if not argument.fixed]
    masks, positions = _named(arguments, arrays, _MASK), _named(arguments, arrays, _POSITIONS)
    others = _given_masks(arguments, arrays)
    padded: dict[str, dict[str, Array]] = {}
    paddings = {**_PADDINGS, **({_ONES: _full} if others.keys() - masks.keys() else {})}
    for name, pad in paddings.items() if masks or others else ():
        padded[name] = dict(arrays)
        for mask, seen in others.items():
            padded[name][mask] = _spread(pad, seen)
        for mask, tokens in masks.items():
            padded[name][mask] = pad(tokens.shape)
        for place, tokens in positions.items():
            mask = place.replace(_POSITIONS, _MASK)
            seen = padded[name].get(mask, np.ones(tokens.shape, np.int64))
            padded[name][place] = np.clip(np.cumsum(seen, axis=1) - 1, 0, None)
    return padded


def write_padding(file: Path, arrays: Arrays, batches: Mapping[str, Arrays]) -> None:
    """Write what each padded batch has that the input has not: "padding on the left.attention_mask"."""
    from safetensors.numpy import save_file

    others = {
        f"{batch}.{name}": np.ascontiguousarray(array)
        for batch, padded in batches.items()
        for name, array in padded.items()
        if array is not arrays.get(name)
    }
    save_file(others, file)


def _left(shape: tuple[int, ...]) -> Array:
    rows, length = shape
    counts = 1 + np.arange(rows) % max(1, length - 1)
    return (np.arange(length)[None] >= counts[:, None]).astype(np.int64)


def _right(shape: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(_left(shape)[:, ::-1])


def _empty(shape: tuple[int, ...]) -> Array:
    mask = _right(shape)
    mask[0] = 0
    return mask


def _full(shape: tuple[int, ...]) -> Array:
    mask = _right(shape)
    mask[0] = 1
    return mask


def _spread(pad: Callable[[tuple[int, ...]], Array], mask: Array) -> Array:
    """A mask of this shape and dtype: rows on its first axis, keys on its last."""
    shape = (mask.shape[0], *[1] * (mask.ndim - 2), mask.shape[-1])
    rows = pad((shape[0], shape[-1])).reshape(shape)
    return np.broadcast_to(rows, mask.shape).astype(mask.dtype)


_PADDINGS: Mapping[str, Callable[[tuple[int, ...]], Array]] = {
    "padding on the left": _left,
    "padding on the right": _right,
    "a row of padding": _empty,
}
_ONES = "a row of ones"


def _given_masks(arguments: Sequence[Any], arrays: Arrays) -> dict[str, Array]:
    """The given inputs that masks of attentions are made from: what hides, not what it is called."""
    masks = {argument.name: arrays.get(argument.name) for argument in arguments if argument.hides}
    return {
        name: array
        for name, array in masks.items()
        if array is not None
        and array.ndim > 1
        and array.shape[-1] > 1
        and bool(np.isin(array, (0, 1)).all())
    }


def _named(arguments: Sequence[Any], arrays: Arrays, kind: str) -> dict[str, Array]:
    """Arguments of a kind, each with its tokens: the decoder's of `decoder_attention_mask`."""
    masks: dict[str, Array] = {}
    for argument in arguments:
        if not argument.name.endswith(kind) or not argument.dtype.startswith(("int", "bool")):
            continue
        tokens = arrays.get(argument.name.removesuffix(kind) + _TOKENS)
        if tokens is not None and tokens.ndim == len(argument.shape) == 2 and len(tokens[0]) > 1:
            masks[argument.name] = tokens
    return masks
