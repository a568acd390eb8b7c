"""Run a script as `python script.py` would, with calls of ours between some of its statements.

    python -c "from migrate.train.watch.runner import main; main()" SCRIPT ARGS…

The file on disk stays as it is: line numbers and sources are the user's.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

from migrate.train.slice.text import ScriptText, first_line, path_to
from migrate.train.watch.seeds import seed_host

QUESTION, ECHO, PORT = "question.json", "echo.json", "port.pickle"
BEGINS, STATEMENT = "__migrate_begins__", "__migrate_statement__"
LOOP, TURN = "__migrate_loop__", "__migrate_turn__"
DRAWN, ENDS, PASSED = "__migrate_drawn__", "__migrate_ends__", "__migrate_passed__"
SETS_RATE, CALLS = "__migrate_sets_rate__", "__migrate_calls__"


def main() -> None:
    """Run the script that the command line names."""
    script, *args = sys.argv[1:]
    path = Path(script)
    source = path.read_bytes().decode()
    tree = ast.parse(source, script)
    seed_host()
    for name in (
        BEGINS,
        STATEMENT,
        LOOP,
        TURN,
        DRAWN,
        ENDS,
        PASSED,
        SETS_RATE,
        CALLS,
    ):  # until torch is imported, and with it the recorder
        setattr(builtins, name, lambda *values: None)
    question = Path(os.environ["MIGRATE_TRAIN_FOLDER"]) / QUESTION
    if question.exists():
        _insert(ScriptText(script, source), tree, json.loads(question.read_text()))
    sys.argv = [script, *args]
    sys.path[0] = str(path.parent)
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    try:
        exec(compile(tree, script, "exec"), module.__dict__)
    finally:  # at the interpreter's end no thread starts any more
        getattr(builtins, ENDS)()


def _insert(script: ScriptText, tree: ast.Module, question: dict[str, Any]) -> None:
    """Insert calls before the first statement of the loss, and before statements of the training function."""
    twin = ScriptText(script.name, script.source)
    twin.__dict__["tree"] = tree
    name, first = question["slice"]
    places = [(name, first, question["line"], f"{BEGINS}(locals(), globals())")]
    name, first = question["loop"]
    places += [(name, first, line, f"{STATEMENT}({line})") for line in question["statements"]]
    places.append((name, first, question["batches"], f"{LOOP}()"))
    name, first = question["slice"]
    for line in {*question["drawn"].values()}:
        code = twin.code(first, name)
        block, index = path_to(code, line)[-1]  # type: ignore[arg-type]
        block.insert(index + 1, _call(f"{DRAWN}(locals(), globals())", block[index]))
    places += [
        (name, first, line, f"{PASSED}({line}, locals(), globals())")
        for name, first, line in question["passed"]
    ]
    places += [
        (name, first, line, f"{SETS_RATE}({name!r}, {first}, {line}, locals(), globals())")
        for name, first, line, _ in question["setters"]
    ]
    places += [
        (name, first, line, f"{CALLS}({called!r}, locals(), globals())")
        for name, first, line, called in question["callees"]
    ]
    for name, first, line, call in places:
        code = twin.code(first, name)
        path = path_to(code, line) if code is not None else []
        level = next(
            ((block, index) for block, index in path if first_line(block[index]) == line),
            None,
        )
        if level is None:
            continue
        block, index = level
        if isinstance(block[index], ast.Import | ast.ImportFrom) or _is_text(block[index]):
            continue  # a docstring and `from __future__` come first
        block.insert(index, _call(call, block[index]))
    name, first = question["loop"]
    for loop in ast.walk(twin.code(first, name) or ast.Module([], [])):
        if isinstance(loop, ast.For) and first_line(loop) == question["batches"]:
            skip = f"if {TURN}(locals(), globals()):\n    continue"
            loop.body.insert(0, _call(skip, loop.body[0]))


def _call(text: str, at: ast.stmt) -> ast.stmt:
    """A call as a statement, at the line of another one."""
    inserted = ast.parse(text).body[0]
    for node in ast.walk(inserted):
        ast.copy_location(node, at)
        node.end_lineno = at.lineno  # type: ignore[attr-defined]
    return ast.fix_missing_locations(inserted)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
