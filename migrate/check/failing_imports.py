"""Find the `except` that handles a failing import of a script."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue.words import EXITS
from migrate.reading.facts import Facts
from migrate.reading.steps.leaving import leaves_turn
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code

# Exceptions whose handlers catch a failing import.
FAILS = ("ImportError", "ModuleNotFoundError", "Exception")


def fallback(node: cst.CSTNode, facts: Facts, works_on_host: bool = False) -> str:
    """Return the message about the `except` that handles a failing import `node`. Empty if there is none.

    Args:
        node: the import.
        facts: the facts of its file.
        works_on_host: whether the import succeeds without CUDA, where the library is installed.
    """
    handlers = list(_met(node, facts))
    if handlers and works_on_host:
        line = facts.context.position(handlers[-1][0]).line
        return (
            f"; it imports without CUDA, so the `except` of {at_line(line)} runs only where it is "
            "not installed"
        )
    for handler, ending in handlers:
        line = facts.context.position(handler).line
        if not ending:
            return f"; on a TPU the script continues without it, by the `except` of {at_line(line)}"
    if handlers:
        line = facts.context.position(handlers[-1][0]).line
        return f"; on a TPU the script ends there, by the `except` of {at_line(line)}"
    return ""


def is_optional(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the script continues if the import `node` fails, or the `try` around it may let it."""
    handlers = list(_met(node, facts))
    if handlers:
        return any(not ending for _, ending in handlers)
    return any(isinstance(above, cst.Try) for above in facts.context.ancestors(node))


def handlers_of(node: cst.CSTNode, facts: Facts) -> Iterator[cst.ExceptHandler]:
    """Yield the handlers in the function that catch an exception of `node`, the innermost first."""
    below = node
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return
        if isinstance(above, cst.Try) and below is above.body:
            yield from above.handlers
        below = above


def _met(node: cst.CSTNode, facts: Facts) -> Iterator[tuple[cst.ExceptHandler, str]]:
    """Yield the handlers of a failing import, with how each ends: "" if the script continues.

    A handler that raises passes the exception to the `try` around it. A handler that continues or exits is
    the last.
    """
    passed: set[int] = set()
    for handler in handlers_of(node, facts):
        around = id(facts.context.parent(handler))
        names = "" if handler.type is None else code(handler.type)
        if around in passed or (names and not any(name in names for name in FAILS)):
            continue
        passed.add(around)
        ending = _ending(handler.body)
        yield handler, ending
        if ending != "raises":
            return


def _ending(node: cst.CSTNode | None) -> str:
    """Return how each path through `node` ends: it "raises" or "exits". Empty if a path continues."""
    if isinstance(node, cst.Raise):
        return "raises"
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        return "exits" if code(node.value.func) in EXITS else ""
    if isinstance(node, cst.If):
        ways = {_ending(node.body), _ending(node.orelse)}
        return max(ways) if "" not in ways else ""
    if isinstance(node, cst.Else | cst.With):
        return _ending(node.body)
    if isinstance(node, cst.BaseSuite | cst.SimpleStatementLine):
        for statement in node.body:
            ending = _ending(statement)
            if ending or leaves_turn(statement):
                return ending
    return ""
