"""Lines of a stack that belong to the original: neither to torch nor to this package, which observes it."""

from __future__ import annotations

import traceback
from pathlib import Path
from traceback import FrameSummary

import torch

# Prefix of the paths of this package's files.
OURS = f"{Path(__file__).parent}/"


def frame_of_original(*beside: str) -> FrameSummary | None:
    """Return the innermost running line of the original, or None.

    Args:
        beside: name prefixes of further files that are not the original's.
    """
    others = (f"{torch.__path__[0]}/", OURS, *beside)
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(others):
            return frame
    return None


def line_of_original() -> str:
    """Return the running line of the original, "net.py:12", or ""."""
    frame = frame_of_original()
    return f"{Path(frame.filename).name}:{frame.lineno}" if frame is not None else ""
