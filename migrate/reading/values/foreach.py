"""Argument `foreach` of the torch functions that clip gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue import torch_other
from migrate.catalogue.entry import names
from migrate.syntax.tree import keyword

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

# The functions of torch that raise for XLA tensors with `foreach=True`.
TAKES_FOREACH = names(*torch_other.CLIPS, *torch_other.NORMS)
# Number of arguments before `foreach`, by the last part of the function's name.
_BEFORE = {
    "clip_grad_norm": 4,
    "clip_grad_norm_": 4,
    "clip_grad_value_": 2,
    "clip_grads_with_norm_": 3,
    "get_total_norm": 3,
}


def foreach_of(call: cst.Call, context: Parsed) -> cst.Arg | None:
    """Return the argument `foreach` of a call, by name or, for a torch function, by position."""
    named = keyword(call, "foreach")
    name = context.qualified_name(call.func)
    if named is not None or name not in TAKES_FOREACH or name is None:
        return named
    before = _BEFORE[name.rpartition(".")[2]]
    plain = len(call.args) > before and all(
        arg.keyword is None and not arg.star for arg in call.args[: before + 1]
    )
    return call.args[before] if plain else None
