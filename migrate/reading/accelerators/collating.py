"""Functions that make a batch of samples: what a DataLoader is given as `collate_fn`."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.reading.calls.kinds import Instance, Partial
from migrate.reading.calls.scopes import Function

if TYPE_CHECKING:
    from migrate.reading.calls.analysis import Analysis
    from migrate.reading.calls.scopes import Scope


@lru_cache(maxsize=2)
def collating_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions and methods of a project that some call is given as `collate_fn`."""
    evaluator = analysis.evaluator
    found: set[Scope] = set()
    for call, ran in analysis.running.items():
        for keyword in call.keywords:
            if keyword.arg != "collate_fn" or isinstance(keyword.value, ast.Constant):
                continue
            for value in evaluator.values(keyword.value, ran.scope):
                match value:
                    case Function():
                        found.add(value)
                    case Partial(of):
                        found.add(of)
                    case Instance(of):
                        method = evaluator.method(of, "__call__")
                        found.update([method] if method is not None else [])
    return frozenset(found)
