"""Quantized weights are refused: their numbers mean nothing without the code that unpacks them."""

from __future__ import annotations

from collections.abc import Iterable

from converters.checkpoint.reader import Checkpoint
from converters.errors import UnsupportedDtypeError

# What each scheme adds to a module's keys.
_MARKS = {
    ".quant_state.bitsandbytes__": "bitsandbytes, 4 bit",
    ".SCB": "bitsandbytes, 8 bit",
    ".qweight": "GPTQ or AWQ",
    "._packed_params._packed_params": "torch.ao.quantization",
    ".weight_packed": "compressed-tensors",
    ".codebooks": "AQLM",
}


def require_not_quantized(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint in whose keys a quantization scheme shows.

    Float8 weights are no such case: they are numbers as they are.

    Raises:
        UnsupportedDtypeError: one shows; the message names it.
    """
    found = _scheme((*checkpoint.infos, *checkpoint.others))
    if found:
        key, scheme = found
        raise UnsupportedDtypeError(
            f"{checkpoint.source} is quantized ({scheme}: {key[:160]}), so its weights are no numbers",
            "convert the checkpoint that it was quantized from, or dequantize it first",
        )


def _scheme(keys: Iterable[str]) -> tuple[str, str] | None:
    for key in keys:
        for mark, scheme in _MARKS.items():
            if mark in key and (mark.endswith("__") or key.endswith(mark)):
                return key, scheme
    return None
