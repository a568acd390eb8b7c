"""Arrays of a compiled program: read from its text, and the room that they take."""

from __future__ import annotations

import pytest

from migrate.compiler.arrays import HloArray, leaves, read_result


@pytest.mark.parametrize(
    ("text", "padded"),
    [
        ("f32[1000,1000]{1,0:T(8,128)}", 1000 * 1024 * 4),
        ("f32[1000,1000]{0,1:T(8,128)}", 1000 * 1024 * 4),
        ("f32[50,1000]{1,0:T(8,128)}", 56 * 1024 * 4),
        ("bf16[9,100]{1,0:T(8,128)(2,1)}", 16 * 128 * 2),
        ("f32[2,3,5,7]{3,2,1,0:T(8,128)}", 2 * 3 * 8 * 128 * 4),
        ("f32[5000]{0:T(1024)}", 5120 * 4),
        ("f32[]{:T(128)}", 128 * 4),
        ("s64[3]{0}", 24),
        ("pred[8,128]{1,0:T(8,128)(4,1)}", 1024),
        ("s4[16,256]{1,0:T(64,128)}", 64 * 256 // 2),
        ("token[]", 0),
    ],
)
def test_the_most_minor_sides_are_rounded_up_to_the_tile(text: str, padded: int) -> None:
    result, end = read_result(text)
    assert isinstance(result, HloArray)
    assert end == len(text)
    assert result.padded == padded


def test_a_tuple_of_tuples_with_spaces_and_counted_elements() -> None:
    text = "((f32[4]{0:T(128)}), bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, /*index=2*/u32[]{:S(2)}) rest"
    result, end = read_result(text)
    assert text[end:] == " rest"
    assert [(one.dtype, one.shape, one.space) for one in leaves(result)] == [
        ("f32", (4,), 0),
        ("bf16", (2, 3), 1),
        ("u32", (), 2),
    ]
    assert isinstance(result, tuple)
    assert isinstance(result[0], tuple)


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(ValueError, match="no array"):
        read_result("%name")
