"""Lines of a stack that belong to the original: neither to torch nor to this package, which observes it."""

from __future__ import annotations

import traceback
from pathlib import Path
from traceback import FrameSummary

import torch

# Prefix of the paths of this package's files.
OURS = f"{Path(__file__).parent}/"
# Methods of modes, which run between the original's line and torch.
_OF_MODES = ("__torch_function__", "__torch_dispatch__")


def frame_of_original(*beside: str) -> FrameSummary | None:
    """Return the innermost running line of the original, or None.

    Args:
        beside: name prefixes of further files that are not the original's.
    """
    others = (f"{torch.__path__[0]}/", OURS, *beside)
    line: FrameSummary | None = None
    for frame in traceback.extract_stack():
        if frame.name in _OF_MODES:  # what runs in it is the mode's
            return line
        if not frame.filename.startswith(others):
            line = frame
    return line


def line_of_original() -> str:
    """Return the running line of the original, "net.py:12", or ""."""
    frame = frame_of_original()
    return f"{Path(frame.filename).name}:{frame.lineno}" if frame is not None else ""
