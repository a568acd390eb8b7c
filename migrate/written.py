"""Folders that `migrate port` and `migrate train` wrote: Flax programs, which no rule for torch concerns."""

from __future__ import annotations

from pathlib import Path

# The file in such a folder with the hashes of what was written.
RECORD = ".port.json"


def is_written(path: Path, folder: Path) -> bool:
    """Whether a file lies in such a folder below `folder`; if `folder` is itself one, its files do not."""
    between = (above for above in path.parents if above != folder and folder in above.parents)
    return any((above / RECORD).is_file() for above in between)
