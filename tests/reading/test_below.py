"""Nodes below another one come from the script's order; they are those that a walk gives."""

from __future__ import annotations

from pathlib import Path

import libcst as cst

from migrate.reading.script import Script
from migrate.syntax.source import parse
from migrate.syntax.walk import nodes_of
from tests.reading.test_walk import EVERYTHING

KINDS = (cst.Name, cst.Call, cst.Attribute, cst.FunctionDef, cst.Return, cst.Arg)


def test_they_are_those_of_a_walk_from_every_node() -> None:
    script = Script(parse(EVERYTHING.encode(), Path("script.py")))
    assert len(script.nodes) > 300
    for node in script.nodes:
        for kind in KINDS:
            walked = [id(below) for below in nodes_of(node, kind)]
            assert [id(below) for below in script.below(node, kind)] == walked


def test_a_node_that_is_not_in_the_script_is_walked() -> None:
    script = Script(parse(b"f(x)\n", Path("script.py")))
    other = cst.parse_expression("g(h(y))")
    names = [name.value for name in script.below(other, cst.Name)]
    assert names == ["g", "h", "y"]
