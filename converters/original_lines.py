"""Which lines of a stack are the original's: neither torch's nor those of this package, which watches it."""

from __future__ import annotations

import traceback
from pathlib import Path
from traceback import FrameSummary

import torch

# The beginning of the paths of this package's files.
OURS = f"{Path(__file__).parent}/"


def frame_of_original(*beside: str) -> FrameSummary | None:
    """Return the innermost line of the original that is running; None where there is none.

    Args:
        beside: the beginnings of the names of further files that are not the original's.
    """
    others = (f"{torch.__path__[0]}/", OURS, *beside)
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(others):
            return frame
    return None


def line_of_original() -> str:
    """Return the line of the original that is running: "net.py:12"; "" where there is none."""
    frame = frame_of_original()
    return f"{Path(frame.filename).name}:{frame.lineno}" if frame is not None else ""
