"""SHA-256 of every leaf, from the bytes in the file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from converters.output.layouts import PlacedLeaf
from converters.output.stream import Sink

_STEP = 4 << 20


def digest_leaves(file: Sink, placed: Sequence[PlacedLeaf]) -> dict[str, str]:
    """Return leaf → SHA-256 in hexadecimal, computed on all cores."""
    with ThreadPoolExecutor(max(2, min(8, os.cpu_count() or 1)), "digest") as pool:
        digests = pool.map(partial(_digest, file), placed)
        return {place.leaf.path: digest for place, digest in zip(placed, digests, strict=True)}


def _digest(file: Sink, placed: PlacedLeaf) -> str:
    digest = hashlib.sha256()
    held = np.empty(min(_STEP, placed.leaf.info.nbytes), np.uint8)
    for start in range(0, placed.leaf.info.nbytes, _STEP):
        for span in placed.spans(start, start + _STEP):
            part = held[: span.stop - span.start]
            file.read(span.file, span.offset, part)
            digest.update(part.data)
    return digest.hexdigest()
