"""Branches of a function that the constants of one call rule out: `train(None)` of `def train(rank)`."""

from __future__ import annotations

import ast

import libcst as cst

from migrate.model.project.decided import ruled_out
from migrate.syntax.tree import code, nodes_of


def ruled_out_branches(call: cst.Call, function: cst.FunctionDef) -> frozenset[int]:
    """Return the ids of the blocks of `function` that do not run if `call` calls it by its name."""
    alone = function.with_changes(leading_lines=(), decorators=(), lines_after_decorators=())
    try:
        definition = ast.parse(cst.Module([alone]).code).body[0]
        called = ast.parse(code(call), mode="eval").body
    except SyntaxError:
        return frozenset()
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    assert isinstance(called, ast.Call)
    dead = ruled_out(called, definition, False)
    if not dead:
        return frozenset()
    tests = sorted(
        (node for node in ast.walk(definition) if isinstance(node, ast.If)),
        key=lambda test: (test.lineno, test.col_offset),
    )
    # Both list the tests in the order of the text, so that the pairs are the same statements.
    pairs = zip(nodes_of(function, cst.If), tests, strict=True)
    return frozenset(
        id(block)
        for branch, test in pairs
        for block, statements in ((branch.body, test.body), (branch.orelse, test.orelse))
        if block is not None and statements and all(each in dead for each in statements)
    )
