"""Conversion of a JAX tree of parameters to torch tensors by key and back, inside a compiled step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converters.layers.join import ALONE, Concat, Join, Stack
from converters.mapping.leaves import PlannedLeaf
from converters.optimizer.names import named_leaves, normal


class Arrangement:
    """Correspondence of a tree's arrays and torch tensors.

    Args:
        leaves: the arrays; arrays missing in a tree (another group's) are skipped.
    """

    def __init__(self, leaves: tuple[PlannedLeaf, ...]) -> None:
        self._leaves = {normal(leaf.path): leaf for leaf in leaves}

    def to_torch(self, tree: Any) -> dict[str, Any]:
        """Return key → tensor in torch's arrangement."""
        import jax.numpy as jnp

        parts: dict[str, list[tuple[int, int, Any]]] = {}
        for name, array in named_leaves(tree)[0]:
            leaf = self._leaves[normal(name)]
            for piece, value in zip(leaf.pieces, _split(leaf, array), strict=True):
                tensor = piece.layout.inverse.apply(value)
                axis, start = (piece.part.axis, piece.part.start) if piece.part else (0, 0)
                parts.setdefault(piece.key, []).append((axis, start, tensor))
        tensors = {}
        for key, tensor_parts in parts.items():
            tensor_parts.sort(key=lambda part: part[1])
            values = [value for _, _, value in tensor_parts]
            tensors[key] = (
                values[0] if len(values) == 1 else jnp.concatenate(values, tensor_parts[0][0])
            )
        return tensors

    def from_torch(self, tensors: Mapping[str, Any], like: Any) -> Any:
        """Return a tree like the given tree from such tensors."""
        import jax

        named, structure = named_leaves(like)
        arrays = []
        for name, _ in named:
            leaf = self._leaves[normal(name)]
            arrays.append(
                _joined(leaf.join, [piece.take(tensors[piece.key]) for piece in leaf.pieces])
            )
        return jax.tree.unflatten(structure, arrays)


def _joined(join: Join, pieces: list[Any]) -> Any:
    import jax.numpy as jnp

    if isinstance(join, Stack):
        return jnp.stack(pieces, join.axis)
    if isinstance(join, Concat):
        return jnp.concatenate(pieces, join.axis)
    if join == ALONE:
        return pieces[0]
    raise ValueError(f"an array that is a {join} has no single arrangement in torch")


def _split(leaf: PlannedLeaf, array: Any) -> list[Any]:
    import jax.numpy as jnp

    join = leaf.join
    if isinstance(join, Stack):
        return list(jnp.moveaxis(array, join.axis, 0))
    if isinstance(join, Concat):
        raise ValueError(f"{leaf.path}: arrays that are joined tensors are not for Adafactor")
    if join == ALONE:
        return [array]
    raise ValueError(f"{leaf.path}: an array that is a {join} has no single arrangement in torch")
