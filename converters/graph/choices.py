"""Operators of a merged graph for inputs that a caller may leave out."""

from __future__ import annotations

from typing import Any, TypeGuard

from converters.graph.ir import Op

# (value, other): the value where it can be computed, the other where the inputs that it needs are left out.
CHOICE = "tpu_migrate.choice"
# A mask of (rows, keys) as truths of (rows, 1, 1, keys).
SPREAD = "tpu_migrate.spread"


def is_choice(item: Any) -> TypeGuard[Op]:
    """Whether an item is a choice between a value and what stands for it without an input."""
    return isinstance(item, Op) and item.target == CHOICE
