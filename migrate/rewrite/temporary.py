"""The rewritten script for as long as it is run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from migrate.rewrite.story import Rewrite
from migrate.rewrite.write import write


@contextmanager
def written_beside(done: Rewrite) -> Iterator[Path]:
    """Yield the path of the rewritten script, written for as long as the context lasts.

    It lies in the folder of the original, where the script finds its modules and its data.
    """
    path = done.path
    temporary = path.with_name(f".{path.stem}_xla_{os.getpid()}{path.suffix}")
    try:
        write(done, temporary)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
