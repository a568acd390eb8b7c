"""Keep a checkpoint as the script first wrote it, in the process that writes it.

The script may overwrite its file a moment later: the first version is copied beside the recording as soon as
`torch.save` has written it, or a rename has put it in place. What is written by other means is found
by `migrate.prove.resume`, which looks at the file from outside.
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
    """Look at the file after each `torch.save`, `os.replace` and `os.rename`."""
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
            # Of a file that the script has not closed yet, a part may not be on disk.
            if hasattr(arg, "flush"):
                arg.flush()
        look()
        return result

    return written


def kept_path(folder: Path) -> Path:
    """Where the first version lies, by the folder of the recording."""
    return folder / "checkpoint"


def stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """What tells one version of a file, or of a folder of files, from another; empty if there is none."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    found = []
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        found.append((str(file), state.st_mtime_ns, state.st_size))
    return tuple(found)


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder; the target is there once it is whole."""
    partial = target.with_name(f"{target.name}.partial{os.getpid()}")
    if source.is_dir():
        shutil.copytree(source, partial)
    else:
        shutil.copyfile(source, partial)
    partial.rename(target)
