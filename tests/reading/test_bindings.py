"""What a name is bound to, by Python's own scopes."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import libcst as cst
import pytest

from migrate.reading.script import Script
from migrate.syntax.source import parse
from migrate.syntax.tree import code


def bound(text: str) -> tuple[str, list[str]]:
    """Return where `x` in the last call `use(x)` is bound, and the values that it is given."""
    script = Script(parse(dedent(text).encode(), Path("script.py")))
    call = [c for c in script.all_of(cst.Call) if code(c.func) == "use"][-1]
    name = call.args[0].value
    assert isinstance(name, cst.Name)
    owner, _ = script.bound_to(name)
    values = [
        "?" if value is None else "parameter" if isinstance(value, cst.Param) else code(value)
        for value in script.bound_values(name)
    ]
    return type(owner).__name__, values


@pytest.mark.parametrize(
    ("text", "owner", "values"),
    [
        ("x = 1\nuse(x)", "Module", ["1"]),
        ("x = 1\nx += 1\nuse(x)", "Module", ["1", "?"]),
        ("def f(x): use(x)", "FunctionDef", ["parameter"]),
        ("def f():\n    global x\n    x = 1\n\nuse(x)", "Module", ["1"]),
        ("x = 0\ndef f():\n    def g():\n        nonlocal x\n        x = 1\n    x = 2\n    use(x)",
         "FunctionDef", ["1", "2"]),
        ("class C:\n    x = 1\n    def f(self): use(x)", "NoneType", []),
        ("class C:\n    x = 1\n    use(x)", "ClassDef", ["1"]),
        ("class C:\n    x = 1\nx = 2\nuse(x)", "Module", ["2"]),
        ("x = 1\nlist(x for x in y)\nuse(x)", "Module", ["1"]),
        ("x = 1\n[use(x) for x in y]", "ListComp", ["?"]),
        ("x = 1\n[0 for x in use(x)]", "Module", ["1"]),
        ("[y := 1 for _ in z]\nx = 1\nuse(x)", "Module", ["1"]),
        ("x = 1\nf = lambda x: use(x)", "Lambda", ["parameter"]),
        ("x = 1\ndef f(x=use(x)): pass", "Module", ["1"]),
        ("def x(): pass\nuse(x)", "Module", ["?"]),
        ("try:\n    import x\nexcept ImportError:\n    x = None\nuse(x)", "Module", ["?", "None"]),
        ("with a as x: use(x)", "Module", ["?"]),
        ("for x in y: use(x)", "Module", ["?"]),
        ("match y:\n    case {'k': [x, *_]}: use(x)", "Module", ["?"]),
        ("use(x)", "NoneType", []),
    ],
)  # fmt: skip
def test_a_name_is_bound_as_python_binds_it(text: str, owner: str, values: list[str]) -> None:
    assert bound(text) == (owner, values)


def test_attributes_and_what_they_are_given() -> None:
    text = "self.a = 1\nself.b, c.a = 2, 3\nself.d, e.f = g()\nself.h: int = 4\nfor i.j in k: pass"
    script = Script(parse(text.encode(), Path("script.py")))
    found = {
        name: [(code(target), value and code(value)) for target, value in given]
        for name, given in script.attributes.items()
    }
    assert found == {
        "a": [("self.a", "1"), ("c.a", "3")],
        "b": [("self.b", "2")],
        "d": [("self.d", None)],
        "f": [("e.f", None)],
        "h": [("self.h", "4")],
        "j": [("i.j", None)],
    }
