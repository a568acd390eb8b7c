"""Forms of one class of the original are one class only where that says the same."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
import torch

from converters.graph.expression import code
from converters.graph.writing.forms.asserted import asserted
from converters.graph.writing.forms.branches import Together, together
from converters.graph.writing.forms.form import Form
from converters.graph.writing.model import Class, Method


class Original(torch.nn.Module):
    """What the forms are of."""

    def __init__(self, kind: str = "", wide: bool = False) -> None:
        super().__init__()
        self.kind, self.wide = kind, wide

    def forward(self, x: object, bias: object = None, mask: object = None) -> object:
        return x


def form(text: str, labels: tuple[str, ...] = ("[0]",), module: Original | None = None) -> Form:
    """`x, bias: y = x + bias; y` is a forward's arguments, its statements and its result."""
    given, _, body = text.partition(":")
    *statements, result = ast.parse(body.strip().replace("; ", "\n")).body
    assert isinstance(result, ast.Expr)
    arguments = tuple(one.strip() for one in given.split(","))
    method = Method(arguments, (), list(statements), result.value, labels)
    cls = Class("Original", Original, {}, False, [], {"__call__": method})
    return Form(cls, (module or Original(),), ({},))


def source(found: Together | None) -> str:
    assert found is not None
    method = found.cls.methods["__call__"]
    lines = [ast.unparse(ast.fix_missing_locations(one)) for one in method.body]
    return "\n".join((*lines, f"return {ast.unparse(method.result)}"))


LONG = "a = f(x); b = g(a); c = h(b); d = f(c); e = g(d); "


def test_an_argument_that_some_are_not_given_is_none() -> None:
    found = together(
        [form(f"x: {LONG}y = k(e); y"), form(f"x, bias: {LONG}e = e + bias; y = k(e); y")],
        set(),
        {},
    )
    assert "if bias is not None:\n    e = e + bias\ny = k(e)\nreturn y" in source(found)
    assert found is not None
    assert found.cls.methods["__call__"].optional == {"bias"}
    assert [way.arguments for way in found.ways] == [("x",), ("x", "bias")]


def test_an_argument_that_was_given_a_value_is_not_asked_for_any_more() -> None:
    """Once a form has made `bias`, whether it is None tells nothing; nothing else does: they stay apart."""
    without = form(f"x: bias = k(x); {LONG}y = m(e, bias); y")
    given = form(f"x, bias: bias = n(bias); {LONG}y = o(e, bias); y")
    assert together([without, given], set(), {}) is None
    # With a field of the original's they can be told apart all the same.
    pair = [
        Form(one.cls, (Original(wide=wide),), one.fields)
        for one, wide in ((without, False), (given, True))
    ]
    assert "if self.wide:\n    y = o(e, bias)" in source(together(pair, set(), {}))


def test_a_value_that_is_read_later_keeps_its_name() -> None:
    """`_` takes the name of the other form only where that form does not need what the name holds."""
    first = form(f"x: bias = k(x); y, _ = m(x); {LONG}z = y + bias; z")
    second = form(f"x: bias = k(x); y, bias = m(x); {LONG}z = y + bias; z")
    assert together([first, second], set(), {}) is None


def test_results_that_nothing_tells_apart_stay() -> None:
    forms = [
        form(f"x: {LONG}(d, e)", labels=("", "")),
        form(f"x: {LONG}(c, d, e)", labels=("", "", "")),
    ]
    assert together(forms, set(), {}) is None


def test_what_one_form_is_given_and_another_sets_is_given() -> None:
    """`self.size = self.config.a // self.config.b` in one constructor, a field of the other."""
    first, second = (form(f"x: {LONG}y = e * self.size; y") for _ in range(2))
    given = Form(
        replace(first.cls, fields={"size": "int"}),
        first.modules,
        ({"size": code("self.config.c")},),
    )
    second.cls.setup.extend(ast.parse("self.size = self.config.a // self.config.b").body)
    found = together([given, second], set(), {"a": 8, "b": 2, "c": 3})
    assert found is not None
    assert found.cls.fields == {"size": "int"}
    assert not found.cls.setup
    assert [ast.unparse(one["size"]) for each in found.fields for one in each] == [
        "self.config.c",
        "self.config.a // self.config.b",
    ]
    second.cls.setup[:] = ast.parse("self.size = measured(x)").body
    assert together([given, second], set(), {}) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # What the second form's turns give each other, the first's must not be given.
        ("x: x, _ = m(x, bias=None)", "x, bias: x, bias = m(x, bias=bias)"),
        # What the first form reads in its next turn must not be written over.
        ("x, bias: x, _ = m(x, bias=bias)", "x, bias: x, bias = m(x, bias=bias)"),
    ],
)
def test_turns_of_a_loop_are_seen(first: str, second: str) -> None:
    forms = []
    for text in (first, second):
        given, _, turn = text.partition(": ")
        made = form(f"{given}: {LONG}x")
        loop = ast.parse(f"for one in self.ones:\n    {turn}").body
        made.cls.methods["__call__"].body.extend(loop)
        forms.append(made)
    assert together(forms, set(), {}) is None


def test_a_result_that_a_form_has_not_is_none_there() -> None:
    found = together(
        [
            form(f"x: {LONG}y = k(e); y"),
            form(f"x, mask: {LONG}y = k(e); z = m(mask); (y, z)", labels=("[0]", "[1]")),
        ],
        set(),
        {},
    )
    assert source(found).startswith("z: jax.Array | None = None\n")
    assert found is not None
    assert found.cls.methods["__call__"].absent == {1}
    assert [way.places for way in found.ways] == [(0,), (0, 1)]


def test_a_text_of_the_original_tells_forms_apart() -> None:
    found = together(
        [
            form(f"x: {LONG}y = k(e); y", module=Original("sliding")),
            form(f"x: {LONG}y = m(e); y", module=Original("full")),
        ],
        set(),
        {},
    )
    assert "if self.kind == " in source(found)
    assert found is not None
    assert found.cls.fields == {"kind": "str"}
    assert [one[0] for one in found.fields] == [{"kind": "sliding"}, {"kind": "full"}]


@pytest.mark.parametrize(
    "forms",
    [
        pytest.param([form("x: f(x)"), form("x: g(x)")], id="nothing tells them apart"),
        pytest.param([form("x: f(x)"), form("x, bias: g(bias)")], id="nothing in common"),
        pytest.param(
            [form("x: f(x)", labels=("",)), form("x, bias: (f(x), bias)", labels=("[0]", "[1]"))],
            id="results of unknown places",
        ),
    ],
)
def test_they_stay_apart(forms: list[Form]) -> None:
    assert together(forms, set(), {}) is None


def test_what_may_be_none_is_asserted_where_nothing_shows_it() -> None:
    body = ast.parse("if a is None:\n    a = f(x)\ny = g(a)\nz = h(b)\nw = k(b)").body
    made, known = asserted(body, {"a", "b"})
    text = "\n".join(ast.unparse(ast.fix_missing_locations(one)) for one in made)
    assert text.endswith("y = g(a)\nassert b is not None\nz = h(b)\nw = k(b)")
    assert known == {"a", "b"}
