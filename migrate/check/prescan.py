"""Decide from the bytes of a file that it holds no hazard, so that it need not be parsed."""

from __future__ import annotations

import re

# Every hazard needs one of these in the file: a name of the library, of CUDA or of NCCL, or a method that
# only matters in a file that also names torch.
WORDS = re.compile(
    rb"torch|cuda|CUDA|nccl|apex|triton|flash_attn|bitsandbytes|nvidia|pynvml|py3nvml|cupy|numba"
    rb"|XLA_USE_BF16|XLA_DOWNCAST_BF16|xformers|transformer_engine|deepspeed|horovod|tensorrt|GPUtil"
    rb"|approx_max_k|approx_min_k|migrate: ignore"
)


def may_hold_hazards(data: bytes) -> bool:
    """Whether a file with the bytes `data` has to be looked at."""
    utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return utf16 or WORDS.search(data) is not None
