"""Which inputs torch takes channels first: those that a side of Flax takes channels last."""

from __future__ import annotations

import numpy as np

from migrate.parity.dump import Dump
from migrate.parity.inputs import InputSet

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
