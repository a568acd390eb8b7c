"""Errors of the shims: they cross processes, and name rules that exist."""

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import shims.errors
from migrate.rewrite.rules import all_rules
from shims.errors import ShimError

ROOT = Path(shims.errors.__file__).parent
KINDS = {kind.__name__ for kind in ShimError.__subclasses__()} | {"refusal"}


def rules_named() -> Iterator[tuple[str, str]]:
    """Yield each rule that a refusal names as its third argument, and where."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and len(node.args) == 3:
                called = getattr(node.func, "id", None)
                rule = node.args[2]
                if called in KINDS and isinstance(rule, ast.Constant):
                    yield rule.value, f"{path.name}:{node.lineno}"


def test_the_rules_that_refusals_name_exist() -> None:
    from shims.patches.cuda import _RULES

    known = {rule.name for rule in all_rules()}
    named = list(rules_named())
    assert len(named) > 8
    assert [place for rule, place in named if rule not in known] == []
    assert set(_RULES.values()) <= known


def test_an_error_comes_back_whole_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(ShimError("what", "remedy", "device")))
    assert (error.what, error.remedy, error.rule) == ("what", "remedy", "device")
    assert str(error) == "what; remedy (`migrate rewrite`: rule device)"
