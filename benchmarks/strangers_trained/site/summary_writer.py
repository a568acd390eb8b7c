"""A stand-in for `torch.utils.tensorboard`: a writer that reads what it is given, and keeps the scalars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


class SummaryWriter:
    """Writes a line of JSON for each scalar to `scalars.jsonl` in its folder."""

    def __init__(self, log_dir: Any = "runs", **ignored: Any) -> None:
        """Make the folder."""
        self.log_dir = str(log_dir)
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        self._file = (Path(log_dir) / "scalars.jsonl").open("a")

    def add_scalar(self, tag: str, value: Any, step: Any = None, **ignored: Any) -> None:
        """Read the value and write it."""
        self._file.write(json.dumps({"tag": tag, "value": float(value), "step": step}) + "\n")

    def add_audio(self, tag: str, sound: Any, *ignored: Any) -> None:
        """Read the samples, as the true one does."""
        np.asarray(sound.detach().cpu())

    def add_figure(self, *ignored: Any) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
