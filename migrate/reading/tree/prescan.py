"""Whether a file can concern any rule at all, decided on its bytes without parsing it."""

from __future__ import annotations

import re

# Every construct that a rule speaks of is spelled with one of these: the libraries, the devices, the
# environment of the launchers, and the two calls that make a training step.
WORDS = re.compile(
    rb"torch|cuda|nccl|apex|deepspeed|horovod|fairscale|colossalai|lightning|accelerat|fastai|xla"
    rb"|triton|flash_attn|xformers|bitsandbytes|cupy|numba|nvidia|nvml|tensorrt|transformer_engine"
    rb"|backward|\.step\b|\.to\(|gpu|RANK|WORLD_SIZE|MASTER_|SLURM|OMPI_"
    rb"|migrate:\s*step",
)


def concerns_rules(data: bytes) -> bool:
    """Return whether `data`, a Python file, holds a word of any rule; without one it stays as it is."""
    return WORDS.search(data) is not None
