"""Query, key and value in one array on one side and in three arrays on the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from converters.checkpoint.reader import TensorInfo
from converters.layers.join import ALONE, Concat
from converters.layers.layout import UNCHANGED, Part, Permute
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.target.modules import role_of
from converters.target.words import words_of

NAMES = ("query", "key", "value")
_FUSED = "qkv"


def like_target(
    leaves: Mapping[str, PlannedLeaf], target: Mapping[str, TensorInfo]
) -> tuple[dict[str, PlannedLeaf], dict[str, str]]:
    """Return the arrays with fused ones split, or three joined, if the target has the other form.

    A fused array is query, key and value in this order, each a third: the meaning of `qkv`,
    `in_proj` and `c_attn`. Other names (`query_key_value`, interleaved by head in some models) are
    unchanged.

    Returns:
        The arrays, and for each created array the path of its origin.
    """
    fused = [path for path in leaves if _last(path) == _FUSED]
    wants_fused = any(_last(path) == _FUSED for path in target)
    created: dict[str, PlannedLeaf] = {}
    origins: dict[str, str] = {}
    if fused and not wants_fused:
        for path in fused:
            for part in _thirds(leaves[path]):
                created[part.path], origins[part.path] = part, path
    elif wants_fused and not fused:
        for joined, three in _triples(leaves):
            created[joined.path], origins[joined.path] = joined, three[0]
            fused += three
        if not created:
            return dict(leaves), {}
    gone = set(origins.values()) | (set(fused) if created else set())
    rest = {path: leaf for path, leaf in leaves.items() if path not in gone}
    return rest | created, origins


def _last(path: str) -> str:
    """Return the last word of the module that an array belongs to."""
    words = words_of(role_of(path, (1, 1))[0]).words
    return words[-1] if words else ""


def _thirds(leaf: PlannedLeaf) -> list[PlannedLeaf]:
    """Return the array's three parts along its last axis as query, key and value; or the array itself."""
    module, _, name = leaf.path.rpartition("/")
    parent = module.rpartition("/")[0]
    parts = parts_of(leaf, len(NAMES))
    named = [
        replace(part, path=f"{parent}/{word}/{name}")
        for word, part in zip(NAMES, parts, strict=False)
    ]
    return named or [leaf]


def parts_of(leaf: PlannedLeaf, count: int) -> list[PlannedLeaf]:
    """Return equal parts of an array along its last axis; empty if impossible."""
    (piece, *others) = leaf.pieces
    shape = leaf.info.shape
    axis = _torch_axis(piece, len(shape)) if shape else None
    if others or leaf.join != ALONE or axis is None or shape[-1] % count:
        return []
    side = shape[-1] // count
    info = TensorInfo((*shape[:-1], side), leaf.info.dtype)
    return [
        PlannedLeaf(
            leaf.path,
            info,
            (Piece(piece.key, piece.layout, Part(axis, index * side, (index + 1) * side)),),
        )
        for index in range(count)
    ]


def _torch_axis(piece: Piece, rank: int) -> int | None:
    """Return the axis of the torch tensor that is the array's last axis; None if it is not a single
    axis."""
    if piece.part is not None:
        return None
    if piece.layout == UNCHANGED:
        return rank - 1
    return piece.layout.axes[-1] if isinstance(piece.layout, Permute) else None


def _triples(leaves: Mapping[str, PlannedLeaf]) -> Iterable[tuple[PlannedLeaf, list[str]]]:
    """Yield query, key and value of one module, joined along their last axis."""
    modules: dict[tuple[str, str], dict[str, str]] = {}
    for path in leaves:
        module, _, name = path.rpartition("/")
        parent, word = module.rpartition("/")[0], _last(path)
        if word in NAMES:
            modules.setdefault((parent, name), {})[word] = path
    for (parent, name), paths in modules.items():
        parts = [leaves[paths[word]] for word in NAMES if word in paths]
        if len(parts) < 3 or any(leaf.join != ALONE for leaf in parts):
            continue
        shapes = [leaf.info.shape for leaf in parts]
        join = Concat(len(shapes[0]) - 1)
        try:
            shape = join.shape(shapes)
        except ValueError:
            continue
        info = TensorInfo(shape, parts[0].info.dtype)
        pieces = tuple(piece for leaf in parts for piece in leaf.pieces)
        yield (
            PlannedLeaf(f"{parent}/{_FUSED}/{name}", info, pieces, join),
            [paths[word] for word in NAMES],
        )
