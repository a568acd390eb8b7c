"""The rewritten script for as long as it is run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from migrate.rewrite.results import Rewrite
from migrate.rewrite.write import beside, write
from shims._started import stand_in


@contextmanager
def written_apart(done: Rewrite) -> Iterator[Path]:
    """Yield the path of the rewritten script, written for as long as the context lasts.

    It lies in a folder of its own; run by `migrate.prove.run`, it has `__file__` and the imports of the
    original.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-rewritten-") as folder:
        path = Path(folder).resolve() / beside(done.path).name
        write(done, path)
        stand_in.mark(path, done.path)
        yield path
