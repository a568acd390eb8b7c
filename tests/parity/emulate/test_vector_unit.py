"""What the TPU's compiler makes of products of every shape: for the matrix unit, or multiply and sum."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from migrate.compiler.compile import compile_for_tpu
from migrate.compiler.program import program_of_jax
from migrate.parity.emulate.jax_interpreter import emulated

DOTS = [
    ("ij,jk->ik", (8, 64), (64, 8)),
    ("ij,jk->ik", (2, 64), (64, 2)),
    ("ij,jk->ik", (8, 2), (2, 8)),
    ("ij,jk->ik", (1, 64), (64, 8)),
    ("ij,jk->ik", (8, 64), (64, 1)),
    ("ij,jk->ik", (8, 1), (1, 8)),
    ("ij,j->i", (8, 64), (64,)),
    ("i,i->", (64,), (64,)),
    ("bij,bjk->bik", (4, 8, 64), (4, 64, 8)),
    ("bij,bjk->bik", (4, 1, 64), (4, 64, 8)),
    ("bij,bjk->bik", (4, 8, 1), (4, 1, 8)),
    ("bij,jk->bik", (4, 1, 64), (64, 8)),
    ("bij,jk->bik", (1, 1, 64), (64, 8)),
    ("bij,bij->b", (4, 8, 64), (4, 8, 64)),
    ("bhid,bhjd->bhij", (2, 2, 1, 64), (2, 2, 16, 64)),
    ("ijk,jkl->il", (1, 4, 16), (4, 16, 8)),
]
# Shape of the input and the kernel, groups, stride, padding.
CONVOLUTIONS = [
    ((2, 8, 9, 9), (16, 8, 3, 3), 1, 1, 0),
    ((2, 1, 9, 9), (1, 1, 3, 3), 1, 1, 0),
    ((1, 8, 3, 3), (1, 8, 3, 3), 1, 1, 0),
    ((2, 8, 9, 9), (16, 8, 1, 1), 1, 1, 0),
    ((2, 8, 9, 9), (1, 8, 1, 1), 1, 1, 0),
    ((2, 8, 9, 9), (8, 1, 3, 3), 8, 1, 0),
    ((2, 8, 9, 9), (8, 1, 1, 1), 8, 1, 0),
    ((2, 8, 9, 9), (16, 1, 1, 1), 8, 1, 0),
    ((2, 8, 9, 9), (8, 1, 1, 1), 8, 2, 0),
    ((2, 8, 9, 9), (8, 1, 1, 1), 8, 1, 1),
    ((2, 1, 9, 9), (1, 1, 1, 1), 1, 1, 0),
]


def products() -> list[tuple[str, Any, tuple[tuple[int, ...], ...]]]:
    found: list[tuple[str, Any, tuple[tuple[int, ...], ...]]] = []
    for equation, *shapes in DOTS:
        found.append((f"{equation} {shapes}", _dot(equation), tuple(shapes)))
    for x, kernel, groups, stride, padding in CONVOLUTIONS:
        name = f"convolution {x} {kernel} of {groups} groups, stride {stride}, padding {padding}"
        found.append((name, _convolution(groups, stride, padding), (x, kernel)))
    return found


def _dot(equation: str) -> Any:
    return lambda a, b: jnp.einsum(equation, a, b)


def _convolution(groups: int, stride: int, padding: int) -> Any:
    def call(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            x, kernel, (stride,) * 2, [(padding,) * 2] * 2, feature_group_count=groups
        )

    return call


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")
def test_the_compiler_and_the_emulation_agree_on_what_the_vector_unit_computes() -> None:
    cases = products()
    arguments = [
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes] for _, _, shapes in cases
    ]
    wanted = {}
    for (name, function, _), pair in zip(cases, arguments, strict=True):
        emulation = emulated(function, "default")
        jax.eval_shape(emulation, *pair)
        assert not emulation.seen.unhandled
        wanted[name] = bool(emulation.seen.vector_unit)

    def all_of_them(arguments: Any) -> Any:
        results = []
        for number, ((_, function, _), pair) in enumerate(zip(cases, arguments, strict=True)):
            with jax.named_scope(f"case_{number}_"):
                results.append(function(*pair))
        return results

    compiled = compile_for_tpu(program_of_jax(all_of_them, arguments), [{}])
    assert not compiled.undetermined, compiled.undetermined
    lines = compiled.texts[0].splitlines()
    matrix_unit = {
        int(match[1])
        for line in lines
        if " convolution(" in line and (match := re.search(r"case_(\d+)_", line))
    }
    found = {name: number not in matrix_unit for number, (name, _, _) in enumerate(cases)}
    assert found == wanted
    assert set(found.values()) == {True, False}
