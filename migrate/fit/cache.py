"""Cache of the compiler's answers on the user's disk, by content, so that nothing is compiled twice."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from migrate.compiler.compile import Compiled, Stats
from migrate.compiler.program import CompilerProgram
from migrate.compiler.written import from_json
from migrate.fit.products import Slice

FOLDER = "tpu-migrate/fit"


def folder() -> Path:
    """Folder of the cache: `$XDG_CACHE_HOME/tpu-migrate/fit`, else below `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / FOLDER


def compiled(
    program: CompilerProgram,
    product: Slice,
    devices: int,
    options: Mapping[str, object],
    ask: Callable[[], Compiled],
) -> tuple[Compiled, str]:
    """Return the compiler's answer, and the day of a cached answer, or "" if it was asked now.

    What it did not answer at all (a time limit, a crash) is not kept.
    """
    kept = folder() / f"{_key(program, product, devices, options)}.json.gz"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, EOFError):
        said = json.loads(gzip.decompress(kept.read_bytes()))
        stats = tuple(Stats(**figures) for figures in said.pop("stats"))
        written = from_json(said.pop("written"))
        day = said.pop("day")
        texts = tuple(said.pop("texts"))
        return Compiled(texts=texts, stats=stats, written=written, **said), day
    compiled = ask()
    if compiled.texts or compiled.refused:
        day = time.strftime("%Y-%m-%d %H:%M")
        with contextlib.suppress(
            OSError
        ):  # a full or read-only disk costs the next run its time, no more
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_bytes(gzip.compress(json.dumps(asdict(compiled) | {"day": day}).encode(), 3))
            part.replace(kept)
    return compiled, ""


def _key(
    program: CompilerProgram, product: Slice, devices: int, options: Mapping[str, object]
) -> str:
    versions = [(name, _version(name)) for name in ("libtpu", "jax", "jaxlib", "tpu-migrate")]
    said = (
        program.format,
        program.partitioned,
        program.aliases,
        product.topology,
        sorted(product.options.items()),
        devices,
        sorted(options.items()),
        os.environ.get("LIBTPU_INIT_ARGS", ""),
        versions,
    )
    return hashlib.sha256(repr(said).encode() + program.data).hexdigest()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
