"""The rewritten script for as long as it is run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from migrate.rewrite.engine import rewrite
from migrate.rewrite.write import write


@contextmanager
def rewritten_beside(script: Path, rewritten: Path | None = None) -> Iterator[Path]:
    """Yield the path of the rewritten form of `script`; what was made for it is removed afterwards.

    It lies in the folder of the original, where the script finds its modules and its data.

    Args:
        script: the original.
        rewritten: the rewritten form, where the user has one: yielded as it is.
    """
    if rewritten is not None:
        yield rewritten
        return
    temporary = script.with_name(f".{script.stem}_xla_{os.getpid()}{script.suffix}")
    try:
        write(rewrite(script), temporary)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
