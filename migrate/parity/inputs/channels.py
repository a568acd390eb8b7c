"""Which inputs torch takes channels first: those that a side of Flax takes channels last."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Dump
from migrate.parity.inputs.set import InputSet

# Beginnings of the names of torch's layers whose second axis holds channels.
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
    """The inputs that go, as they are, into a layer of torch's that takes channels first.

    Args:
        dump: torch's, in float32, of the first of the inputs at least.
        inputs: what was fed.
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
        if any(np.array_equal(one, array.astype(np.float32)) for one in taken)
    )


# The option that says it, and what `migrate parity` has to say of it.
OF_A_SIDE = ("--channels-last-b", " (-a where it is side A)")


def layout_remedy(said: str, inputs: Mapping[str, Any], transposed: tuple[str, ...]) -> str:
    """What to try where a model, or its weights, do not fit the shapes of its inputs; "" otherwise.

    Whether a Flax model takes an input as torch does is seen from torch's layers alone: one that
    transposes it itself (FlaxWhisper) is given it the wrong way round.

    Args:
        said: the error, with its type.
        inputs: what the model was given.
        transposed: those of them that were given channels last.
    """
    if not re.search(r"shape|dimension|broadcast", said, re.IGNORECASE):
        return ""
    turned = [name for name in inputs if name in transposed]
    images = [name for name, one in inputs.items() if one.ndim >= 3 and "float" in str(one.dtype)]
    if turned:
        given, option = f"{', '.join(turned)} given channels last: if taken as torch does", "''"
    elif images:
        given, option = "if it takes channels last", ",".join(images)
    else:
        return ""
    return f"{given}, {OF_A_SIDE[0]} {option}{OF_A_SIDE[1]}"
