"""Which functions of other files of the project make a collective and return before it has run."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import libcst as cst

from migrate.reading.facts import Facts
from migrate.reading.values.collectives import TENSORS

NAMES = frozenset(TENSORS) - {"reduce", "gather", "scatter", "broadcast"}
# What reads the values, or ends the graph, in the function itself.
ENDS = frozenset(
    {"item", "tolist", "cpu", "numpy", "sync", "mark_step", "rendezvous", "barrier", "synchronize"}
)
WORD = re.compile(rb"\b(%s)\b" % b"|".join(name.encode() for name in sorted(NAMES)))


def makes_a_collective(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` runs a function of another file that returns while a collective is pending."""
    here = facts.context.source.path.resolve()
    return any(
        one.path != here and one.line in _lines(one.path)
        for one in facts.context.effects.definitions(call)
    )


@lru_cache(maxsize=256)
def _lines(path: Path) -> frozenset[int]:
    """Return the lines of the functions in the file `path` that return a collective's result."""
    try:
        data = path.read_bytes()
        if WORD.search(data) is None:
            return frozenset()
        tree = ast.parse(data)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    return frozenset(one.lineno for one in functions if _leaves_one(one))


def _leaves_one(function: ast.FunctionDef) -> bool:
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
    }
    returns = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))
    return returns and not called.isdisjoint(NAMES) and called.isdisjoint(ENDS)
