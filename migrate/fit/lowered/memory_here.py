"""Whether a run ended because this machine, not the TPU, had too little memory."""

from __future__ import annotations

import re
import signal

# XLA:CPU, torch's allocator, numpy and Python, C++.
_SAYS = re.compile(
    r"RESOURCE_EXHAUSTED|Out of memory allocating|can't allocate memory|not enough memory: you tried"
    r"|Cannot allocate memory|Unable to allocate|\bMemoryError\b|std::bad_alloc"
)
WHAT = "this machine's memory is too small to run it with this batch; it says nothing of the TPU's memory"
REMEDY = (
    "begin with a smaller batch: `--batch auto` looks for the largest that fits the TPU (of a script, with "
    "--batch-option NAME)"
)


def lacks_memory(code: int | None, said: str) -> bool:
    """Whether a process ended for want of memory.

    Args:
        code: exit code of the process, negative for a signal.
        said: what it printed.
    """
    if code is None or code == 0:
        return False
    return code in (-signal.SIGKILL, 128 + signal.SIGKILL) or bool(_SAYS.search(said))
