"""Refusal of quantized weights, whose numbers mean nothing without the code that unpacks them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from converters.checkpoint.reader import Checkpoint, TensorInfo
from converters.errors import UnsupportedDtypeError

# Suffixes that each scheme adds to a module's keys.
_MARKS = {
    ".quant_state.bitsandbytes__": "bitsandbytes, 4 bit",
    ".SCB": "bitsandbytes, 8 bit",
    ".qweight": "GPTQ or AWQ",
    "._packed_params._packed_params": "torch.ao.quantization",
    ".weight_packed": "compressed-tensors",
    ".codebooks": "AQLM",
    ".W_q": "HQQ",
    "_weight_qdata": "torchao",
    ":qdata": "torchao",  # until 0.14
}
# Companions of weights with few bits: (end of the weight's key, of the companion's key, scheme).
_SCALES = (
    (".weight", ".weight_scale_inv", "FP8 with scales of blocks"),
    (".weight", ".weight_scale_2", "NVFP4 of ModelOpt"),
    (".weight", ".weight_scale", "with scales, as of compressed-tensors, ModelOpt or BitNet"),
    (".weight", ".scale_weight", "FP8 with scales"),
    ("._data", "._scale", "quanto"),
    ("._data._data", "._scale", "quanto"),  # of 2 and 4 bits, packed
    ("_blocks", "_scales", "MXFP4"),
    (".B", ".s", "GPTQ for Marlin"),
)
_FEW_BITS = ("int8", "uint8", "float8_")
_PACKED = ("int32",)  # for Marlin
_MATRIX = 2  # number of axes


def require_not_quantized(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose keys or weight types show a quantization scheme.

    Float8 weights without scales are not refused: they are ordinary numbers.

    Raises:
        UnsupportedDtypeError: the checkpoint is quantized; the message names the scheme.
    """
    scheme = quantized_by(checkpoint)
    if scheme:
        raise UnsupportedDtypeError(
            f"{checkpoint.source} is quantized ({scheme}), so its weights are not plain numbers",
            "convert the checkpoint that it was quantized from, or dequantize it first; to keep "
            "the stored numbers, use `migrate weights --as-stored`",
        )


def quantized_by(checkpoint: Checkpoint) -> str:
    """Return the quantization scheme of a checkpoint with a key that shows it, or ""."""
    match = _marked((*checkpoint.infos, *checkpoint.others)) or _scaled(checkpoint.infos)
    return f"{match[1]}: {match[0][:160]}" if match else ""


def _marked(keys: Iterable[str]) -> tuple[str, str] | None:
    for key in keys:
        for mark, scheme in _MARKS.items():
            if mark in key and (mark.endswith("__") or key.endswith(mark)):
                return key, scheme
    return None


def _scaled(infos: Mapping[str, TensorInfo]) -> tuple[str, str] | None:
    """Return a weight of few bits, and the scheme that its scales show."""
    for key, info in infos.items():
        if not info.dtype.startswith((*_FEW_BITS, *_PACKED)):
            continue
        for numbers, beside, scheme in _SCALES:
            if key.endswith(numbers) and key.removesuffix(numbers) + beside in infos:
                return key, scheme
        is_integer_matrix = info.dtype in ("int8", "uint8") and len(info.shape) >= _MATRIX
        if is_integer_matrix and key.rpartition(".")[2] == "weight":
            return key, f"a weight of {info.dtype}"
    return None
