"""Lines of a script that set the mode of a module: `model.train()`, `model.eval()`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import FrameType

from torch import nn

from migrate.train.slice.evaluation import MODES

# Folder of the tools that watch the script.
_PACKAGE = str(Path(__file__).parents[2])


def follow_modes(file: str) -> set[int]:
    """Return a set that gets the lines of a file that set the mode of a module, as the script runs."""
    lines: set[int] = set()
    original = nn.Module.train

    def train(module: nn.Module, mode: bool = True) -> nn.Module:
        frame: FrameType | None = sys._getframe(1)
        # A module sets the modes of its parts, and may have methods of its own in the script.
        while frame is not None and (frame.f_code.co_filename != file or _is_method(frame)):
            own = frame.f_code.co_filename
            if own.startswith(_PACKAGE) and own != __file__:
                return original(module, mode)  # not the script's call
            frame = frame.f_back
        if frame is not None:
            lines.add(frame.f_lineno)
        return original(module, mode)

    setattr(nn.Module, "train", functools.wraps(original)(train))  # noqa: B010
    return lines


def _is_method(frame: FrameType) -> bool:
    return frame.f_code.co_name in MODES and isinstance(frame.f_locals.get("self"), nn.Module)
