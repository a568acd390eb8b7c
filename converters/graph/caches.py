"""Operators of a recorded cache: the new entries that a forward writes, and a cache taken apart and
put together.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch

from converters.graph.expression import as_code, code
from converters.graph.ir import Op

# (cache, layer): the entry of a layer. (entry, part): a tensor of an entry.
LAYER, PART = "tpu_migrate.cache_layer", "tpu_migrate.cache_part"
# (parts, *tensors): an entry of these tensors. (*entries): a cache of these entries.
ENTRY, CACHE = "tpu_migrate.cache_entry", "tpu_migrate.cache_of"
_OPERATORS = (LAYER, PART, ENTRY, CACHE)
# Annotations of an entry and of a cache in the source.
ENTRY_KIND = "dict[str, jax.Array]"
CACHE_KIND = f"list[{ENTRY_KIND}]"
# dtype of the fact of a cache and of an entry, neither of which is a tensor.
OPAQUE = torch.bool


@torch.library.custom_op("tpu_migrate::write_cache", mutates_args=())
def write_cache(cache: torch.Tensor, new: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The cache with new entries from `index` on, along its last axis but one."""
    position = torch.arange(new.shape[-2]) + index
    return cache.index_copy(cache.dim() - 2, position, new)


@write_cache.register_fake
def _(cache: torch.Tensor, new: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    if cache.shape[:-2] != new.shape[:-2] or cache.shape[-1] != new.shape[-1]:
        raise ValueError(f"entries of shape {tuple(new.shape)} in a cache of {tuple(cache.shape)}")
    return torch.empty_like(cache)


def is_cache_operator(item: Any) -> TypeGuard[Op]:
    """Whether an item takes a cache apart or puts one together."""
    return isinstance(item, Op) and item.target in _OPERATORS


def cache_code(item: Op, operands: Sequence[Any]) -> ast.expr:
    """The expression of such an operator."""
    if item.target in (LAYER, PART):
        return code("{cache}[{key}]", cache=operands[0], key=operands[1])
    if item.target == ENTRY:
        names, *tensors = operands
        return ast.Dict([ast.Constant(name) for name in names], list(map(as_code, tensors)))
    return ast.List(list(map(as_code, operands)), ast.Load())
