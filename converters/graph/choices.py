"""Operators of a merged graph for inputs that a caller may leave out."""

from __future__ import annotations

from typing import Any, TypeGuard

from converters.graph.ir import Op

# (value, other): the value where it can be computed, the other where its inputs are left out.
CHOICE = "tpu_migrate.choice"
# Turns a mask of (rows, keys) into booleans of (rows, 1, 1, keys).
SPREAD = "tpu_migrate.spread"


def is_choice(item: Any) -> TypeGuard[Op]:
    """Whether an item is a choice between a value and its replacement for a left out input."""
    return isinstance(item, Op) and item.target == CHOICE
