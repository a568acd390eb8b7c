"""Inputs that torch takes channels first, and a Flax side therefore channels last."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Dump
from migrate.parity.inputs.set import InputSet

# Prefixes of the names of torch's layers whose second axis holds channels.
_CHANNELS_FIRST = (
    "Adaptive",
    "AvgPool",
    "BatchNorm",
    "Conv",
    "GroupNorm",
    "InstanceNorm",
    "MaxPool",
    "PixelUnshuffle",
    "ReflectionPad",
    "ReplicationPad",
    "Upsample",
    "ZeroPad",
)


def channels_first_inputs(dump: Dump, inputs: InputSet) -> tuple[str, ...]:
    """Return the inputs that reach, unchanged, a layer of torch's that takes channels first.

    Args:
        dump: torch's dump in float32, with the first input at least.
        inputs: the inputs.
    """
    first = inputs[0]
    taken = [
        dump.tensor(call.arguments[0])
        for call in dump.calls
        if call.input == 0
        and call.arguments
        and len(call.arguments[0].shape) >= 3
        and dump.layers[call.layer].kind.startswith(_CHANNELS_FIRST)
    ]
    return tuple(
        name
        for name, array in first.items()
        if any(np.array_equal(tensor, array.astype(np.float32)) for tensor in taken)
    )


# The option that sets it, and its note in messages of `migrate parity`.
OF_A_SIDE = ("--channels-last-b", " (-a where it is side A)")


def layout_remedy(said: str, inputs: Mapping[str, Any], transposed: tuple[str, ...]) -> str:
    """Remedy where a model, or its weights, do not fit the shapes of its inputs; "" otherwise.

    Torch's layers alone decide whether a Flax model gets an input channels last. A model that transposes the
    input itself (FlaxWhisper) then gets it in the wrong layout.

    Args:
        said: the error, with its type.
        inputs: the model's inputs.
        transposed: those of them that were passed channels last.
    """
    if not re.search(r"shape|dimension|broadcast", said, re.IGNORECASE):
        return ""
    turned = [name for name in inputs if name in transposed]
    images = [
        name for name, array in inputs.items() if array.ndim >= 3 and "float" in str(array.dtype)
    ]
    if turned:
        condition, option = f"{', '.join(turned)} given channels last: if taken as torch does", "''"
    elif images:
        condition, option = "if it takes channels last", ",".join(images)
    else:
        return ""
    return f"{condition}, {OF_A_SIDE[0]} {option}{OF_A_SIDE[1]}"
