"""Names of torch's inference mode, and calls that switch it off."""

from __future__ import annotations

import libcst as cst

INFERENCE_MODE = frozenset(
    {
        "torch.inference_mode",
        "torch.autograd.inference_mode",
        "torch.autograd.grad_mode.inference_mode",
    }
)


def is_switched_off(call: cst.Call) -> bool:
    """Whether `call` is `inference_mode(False)`."""
    value = call.args[0].value if len(call.args) == 1 else None
    return isinstance(value, cst.Name) and value.value == "False"
