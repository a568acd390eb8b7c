"""Keep a checkpoint as the script first wrote it, in the process that writes it.

The script may overwrite its file a moment later. So the first version is copied beside the recording as soon
as `torch.save` has written it, or a rename has put it in place. Files written by other means are found by
`migrate.prove.resume`, which watches the file from outside.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from migrate.prove.recording.records import RECORD_DIRECTORY
from migrate.prove.settings import CHECKPOINT


def install() -> None:
    """Check the file after each `torch.save`, `os.replace` and `os.rename`."""
    import torch

    checkpoint = Path(os.environ[CHECKPOINT])
    before = stamp(checkpoint)
    kept = kept_path(Path(os.environ[RECORD_DIRECTORY]))

    def look() -> None:
        if checkpoint.is_file() and stamp(checkpoint) != before and not kept.exists():
            copy(checkpoint, kept)

    torch.save = _followed(torch.save, look)
    os.replace = _followed(os.replace, look)
    os.rename = _followed(os.rename, look)


def _followed(write: Callable[..., Any], look: Callable[[], None]) -> Any:
    @functools.wraps(write)
    def written(*args: Any, **kwargs: Any) -> Any:
        result = write(*args, **kwargs)
        for arg in args:
            # While the script has not closed the file, a part of it may not be on disk.
            if hasattr(arg, "flush"):
                arg.flush()
        look()
        return result

    return written


def kept_path(folder: Path) -> Path:
    """Path of the first version in the folder of the recording."""
    return folder / "checkpoint"


def stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Stamp of a version of a file, or of a folder of files; empty if there is none."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    states = []
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        states.append((str(file), state.st_mtime_ns, state.st_size))
    return tuple(states)


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder; the target appears once it is complete."""
    partial = target.with_name(f"{target.name}.partial{os.getpid()}")
    if source.is_dir():
        shutil.copytree(source, partial)
    else:
        shutil.copyfile(source, partial)
    partial.rename(target)
