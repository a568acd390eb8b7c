"""Fingerprint of a conversion, so that only the same conversion is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from converters.checkpoint.folder import file_in_folder
from converters.checkpoint.formats.distributed import METADATA
from converters.checkpoint.source import RemoteSource, Source, file_names, is_folder, source_exists
from converters.mapping.leaves import PlannedLeaf
from converters.output.layouts import OutputLayout

_INDEX_SUFFIX = ".index.json"


def fingerprint_of(layout: OutputLayout, recipe: str) -> str:
    """Return a digest of the layout without the values, and of the recipe of the values."""
    digest = hashlib.sha256(recipe.encode())
    for frame in layout.frames:
        digest.update(json.dumps([frame.file, frame.offset, len(frame.data)]).encode() + frame.data)
    places = [[place.leaf.path, list(map(str, place.stretches))] for place in layout.placed]
    digest.update(json.dumps([places, dict(layout.sizes)]).encode())
    return digest.hexdigest()


def recipe_of(leaves: Sequence[PlannedLeaf], checkpoint: Source | None) -> str:
    """Return everything that determines the values: each leaf's tensors and arrangement, and the
    checkpoint's files.

    Args:
        leaves: the leaves of the plan.
        checkpoint: the path that was opened; None for a checkpoint in memory, which has no identity.
    """
    steps = [
        [
            leaf.path,
            leaf.info.dtype,
            str(leaf.join),
            [[piece.key, str(piece.layout), str(piece.part)] for piece in leaf.pieces],
        ]
        for leaf in leaves
    ]
    files = [] if checkpoint is None else _states(_files(checkpoint))
    return json.dumps([sorted(steps, key=lambda step: str(step[0])), files])


def _files(checkpoint: Source) -> list[Source]:
    """Return the files that the checkpoint's values may come from."""
    if is_folder(checkpoint):
        if not source_exists(checkpoint / METADATA):
            return _files(file_in_folder(checkpoint))
        # The output may lie in the same folder.
        return [
            checkpoint / name
            for name in file_names(checkpoint)
            if name.endswith((".distcp", METADATA))
        ]
    if checkpoint.name.endswith(_INDEX_SUFFIX):
        try:
            names = set(json.loads(checkpoint.read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            names = set()
        return [checkpoint, *(checkpoint.parent / str(name) for name in names)]
    return [checkpoint]


def _states(paths: Iterable[Source]) -> list[list[str | int]]:
    states: list[list[str | int]] = []
    for path in sorted(paths, key=str):
        if isinstance(path, RemoteSource):
            states.append(path.state())
            continue
        state = path.stat()
        states.append([str(path.resolve()), state.st_size, state.st_mtime_ns])
    return states
