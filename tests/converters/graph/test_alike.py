"""Options that several layers of one constructor share are said once."""

from __future__ import annotations

import ast

import pytest

from converters.graph.writing.forms.alike import shortened

NORMAL = "kernel_init=nn.initializers.normal(self.config.initializer_range)"
LONG = f"use_bias=False, {NORMAL}, **self.numerics"


def source(*lines: str) -> str:
    made = shortened(ast.parse("\n".join(lines)).body)
    return ast.unparse(ast.fix_missing_locations(ast.Module(made, [])))


def test_layers_with_the_same_options() -> None:
    written = source(
        f"self.q = nn.Dense(self.config.heads * self.config.head_dim, {LONG})",
        f"self.k = nn.Dense(self.config.shared * self.config.head_dim, {LONG})",
        f"self.o = nn.Dense(self.config.width, {LONG})",
    )
    assert written.startswith("init = nn.initializers.normal(self.config.initializer_range)\n")
    assert (
        "dense: Any = partial(nn.Dense, use_bias=False, kernel_init=init, **self.numerics)"
        in written
    )
    assert "self.q = dense(self.config.heads * self.config.head_dim)" in written
    assert "self.o = dense(self.config.width)" in written


def test_what_differs_stays_with_its_layer() -> None:
    written = source(
        f"self.k = nn.Dense(self.config.width, {LONG})",
        f"self.v = nn.Dense(self.config.width, {NORMAL}, **self.numerics)",
        f"self.q = nn.Dense(self.config.width, {NORMAL}, **self.numerics)",
    )
    assert "dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)" in written
    assert "self.k = dense(self.config.width, use_bias=False)" in written
    assert "self.q = dense(self.config.width)" in written


@pytest.mark.parametrize(
    "lines",
    [
        # One line each as it is.
        ["self.a = nn.Dense(3, **self.numerics)", "self.b = nn.Dense(4, **self.numerics)"],
        # Nothing in common.
        ["self.a = nn.Dense(3, kernel_init=init, use_bias=False)", "self.b = nn.Dense(4)"],
        # What the options are computed of may only hold under the condition.
        [
            f"if self.shortcut:\n    self.a = nn.Dense(self.width, {LONG})\n"
            f"    self.b = nn.Dense(self.width, {LONG})\nself.c = nn.Embed(3, 4)"
        ],
    ],
)
def test_what_would_not_be_shorter_stays(lines: list[str]) -> None:
    assert source(*lines) == ast.unparse(ast.parse("\n".join(lines)))


def test_layers_in_lists_and_under_conditions() -> None:
    written = source(
        "self.inner = self.config.width // 2",
        f"self.first = nn.Dense(self.inner, {LONG})",
        f"self.rest = [nn.Dense(self.config.width, {LONG}) for _ in range(3)]",
        f"if self.has_out:\n    self.out = nn.Dense(self.config.classes, {LONG})",
    ).splitlines()
    assert written[0] == "self.inner = self.config.width // 2"
    assert written[1].startswith("init = ")
    assert written[2].startswith("dense: Any = partial(")
    assert written[4] == "self.rest = [dense(self.config.width) for _ in range(3)]"
    assert written[-1].strip() == "self.out = dense(self.config.classes)"


def test_the_name_is_free() -> None:
    written = source(
        "dense = 3",
        f"self.a = nn.Dense(dense, {LONG})",
        f"self.b = nn.Dense(dense, {LONG})",
        f"self.c = nn.Dense(dense, {LONG})",
    )
    assert "dense_2: Any = partial(" in written
    assert "self.a = dense_2(dense)" in written


def test_the_name_is_not_that_of_a_function() -> None:
    norm = "epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes"
    lines = [f"self.norm{number} = nn.LayerNorm({norm})" for number in range(3)]
    made = shortened(ast.parse("\n".join(lines)).body, {"norm"})
    assert ast.unparse(ast.fix_missing_locations(made[0])).startswith("norm_2: Any = partial(")


def test_an_initializer_that_makes_lines_too_long() -> None:
    start = "trunc_normal(self.config.initializer_range)"
    written = source(
        f"self.cls_token = self.cast_param('cls_token', {start}, (1, 1, self.config.hidden_size))",
        f"self.positions = self.cast_param('positions', {start}, (1, 9, self.config.hidden_size))",
        "self.norm = nn.LayerNorm(epsilon=1e-05)",
    )
    assert written.splitlines() == [
        f"init = {start}",
        "self.cls_token = self.cast_param('cls_token', init, (1, 1, self.config.hidden_size))",
        "self.positions = self.cast_param('positions', init, (1, 9, self.config.hidden_size))",
        "self.norm = nn.LayerNorm(epsilon=1e-05)",
    ]


def test_several_initializers() -> None:
    first, second = (
        f"nn.initializers.normal(self.config.factor * self.config.{side}_of_the_model)"
        for side in ("depth", "width")
    )
    rest = "use_bias=False, **self.numerics"
    written = source(
        f"self.q = nn.Dense(self.config.heads, kernel_init={first}, {rest})",
        f"self.k = nn.Dense(self.config.heads, kernel_init={second}, {rest})",
        f"self.v = nn.Dense(self.config.heads, kernel_init={second}, {rest})",
        f"self.o = nn.Dense(self.config.heads, kernel_init={first}, {rest})",
        f"self.p = nn.Dense(self.config.width, kernel_init={first}, {rest})",
        f"self.r = nn.Dense(self.config.width, kernel_init={second}, {rest})",
    )
    assert f"init = {first}" in written
    assert f"init_2 = {second}" in written
