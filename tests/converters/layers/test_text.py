"""Layouts, parts and joins in the form that a mapping file has."""

import numpy as np
import pytest

from converters.layers.join import ALONE, SUM, ComputedBefore, Concat, Stack
from converters.layers.layout import (
    UNCHANGED,
    Chain,
    Flip,
    Merge,
    Part,
    Permute,
    Plus,
    Split,
    Times,
    chain,
)
from converters.layers.text import parse_join, parse_layout, parse_part

LAYOUTS = [
    UNCHANGED,
    Permute((1, 0)),
    Permute((2, 3, 1, 0)),
    Flip((0, 1)),
    Split(1, (3, 4)),
    Split(0, ()),
    Merge(0, ()),
    Merge(2, (2, 5, 7)),
    Times(0.08838834764831845),
    Times(-3e-7, over=True),
    Plus(-1.0),
    chain([Permute((1, 0)), Times(0.3), Plus(1.0)]),
    chain([Split(0, (2, 3)), Permute((1, 0, 2)), Merge(0, (3, 2)), Flip((1,))]),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_layout_comes_back_from_its_text(layout):
    assert parse_layout(str(layout)) == layout
    assert parse_layout(str(layout.inverse)) == layout.inverse
    assert layout.inverse.inverse == layout


JOINS = [ALONE, SUM, Stack(0), Stack(2), Concat(0), Concat(1), ComputedBefore((2, 3))]


@pytest.mark.parametrize("join", JOINS, ids=str)
def test_a_join_comes_back_from_its_text(join):
    assert parse_join(str(join)) == join


def test_a_part_comes_back_from_its_text():
    part = Part(1, 4, 8)
    assert parse_part(str(part)) == part


@pytest.mark.parametrize(
    "text",
    [
        "",
        "turn(1, 0)",
        "transpose(0, 0)",
        "transpose(1, 0) |",
        "split()",
        "flip",
        "split(-1, 2)",
        "transpose(a)",
        "transpose(1.0, 0)",
        "times(0)",
        "times(1, 2)",
        "times(1e999)",
        "plus()",
    ],
)
def test_what_is_no_layout_is_an_error(text):
    with pytest.raises(ValueError):  # noqa: PT011 (each says something else)
        parse_layout(text)


@pytest.mark.parametrize("text", ["add", "stack(1, 2, 3)", "slice(0, 1)"])
def test_what_is_no_join_or_part_is_an_error(text):
    for parse in (parse_join, parse_part):
        with pytest.raises(ValueError):  # noqa: PT011
            parse(text)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Split(1, (3, 4)), (5, 12)),
        (Split(0, ()), (1, 7)),
        (Merge(1, (3, 4)), (5, 3, 4)),
        (Flip((0, 2)), (2, 3, 4)),
        (chain([Split(0, (2, 3)), Permute((2, 1, 0)), Merge(1, (3, 2))]), (6, 5)),
    ],
    ids=str,
)
def test_a_layout_is_a_bijection(layout, shape):
    array = np.arange(np.prod(shape)).reshape(shape)
    moved = layout.apply(array)
    assert moved.shape == layout.shape(shape)
    np.testing.assert_array_equal(layout.inverse.apply(moved), array)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Split(1, (3, 4)), (5, 11)),
        (Split(2, (3, 4)), (5, 12)),
        (Merge(0, (3, 4)), (3, 5)),
        (Flip((2,)), (3, 5)),
        (chain([Split(0, (2, 3)), Permute((1, 0))]), (6, 5)),
    ],
    ids=str,
)
def test_a_shape_that_does_not_fit_is_an_error(layout, shape):
    with pytest.raises(ValueError):  # noqa: PT011
        layout.shape(shape)


def test_what_changes_nothing_is_left_out_of_a_chain():
    assert chain([]) is UNCHANGED
    assert chain([UNCHANGED, Permute((1, 0))]) == Permute((1, 0))
    assert isinstance(chain([Permute((1, 0)), Flip((0,))]), Chain)


@pytest.mark.parametrize("join", [Stack(1), Concat(0), Concat(1)], ids=str)
def test_a_join_can_be_undone(join):
    pieces = [np.arange(6).reshape(2, 3) + 10 * number for number in range(3)]
    shapes = [piece.shape for piece in pieces]
    joined = join.apply(pieces)
    assert joined.shape == join.shape(shapes)
    for piece, back in zip(pieces, join.split(joined, shapes), strict=True):
        np.testing.assert_array_equal(back, piece)


def test_a_sum_cannot_be_undone():
    pieces = [np.ones(3), np.arange(3)]
    assert SUM.split(SUM.apply(pieces), [(3,), (3,)]) is None
    with pytest.raises(ValueError, match="cannot be added"):
        SUM.shape([(3,), (2,)])


def test_a_part_is_cut_out_and_put_back():
    whole = np.arange(20).reshape(4, 5)
    part = Part(1, 1, 3)
    empty = np.zeros_like(whole)
    part.write(empty, part.apply(whole))
    np.testing.assert_array_equal(empty[:, 1:3], whole[:, 1:3])
    assert part.shape((4, 5)) == (4, 2)
    with pytest.raises(ValueError, match="not in the shape"):
        part.shape((4, 2))
