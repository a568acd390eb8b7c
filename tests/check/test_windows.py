"""XLA112: the positions of a sliding window, however the loops over them are written."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

AROUND = """
import itertools

import numpy as np
import torch


def overlapping(total, window):
    offsets = np.linspace(0, total - window, 4).round().astype(int)
    yield from (slice(start, start + window) for start in offsets)


def starts(total, stride):
    return [i for i in range(0, total, stride)]


def boxes(height, width, stride):
    for y in range(0, height, stride):
        for x in range(0, width, stride):
            yield y, y + stride, x


def crop(image, rows, columns):
    return image[..., rows, columns]


@torch.no_grad()
def tiled(model, image, stride):
    image = image.cuda()
    height, width = image.shape[2:]
    outputs = []
BODY
    return outputs
"""
WINDOWS = {
    "slices of a generator": """
        for rows in overlapping(height, stride):
            for columns in overlapping(width, stride):
                outputs.append(model(crop(image, rows, columns)))
        """,
    "a generator in the function": """
        def both():
            for rows in overlapping(height, stride):
                for columns in overlapping(width, stride):
                    yield rows, columns
        for rows, columns in both():
            outputs.append(model(image[..., rows, columns]))
        """,
    "while": """
        row = 0
        while row < height:
            column = 0
            while column < width:
                outputs.append(model(image[:, :, row:row + stride, column:column + stride]))
                column += int(stride * 2 / 3)
            row += stride
        """,
    "to the edge": """
        row = 0
        while row < height:
            outputs.append(model(image[:, :, row:row + stride]))
            if row == height - stride:
                break
            row = min(row + int(stride * 2 / 3), height - stride)
        """,
    "until a break": """
        row = 0
        while True:
            outputs.append(model(image[:, :, row:row + stride]))
            row = row + stride
            if row >= height:
                break
        """,
    "a list": """
        rows = [i for i in range(0, height, stride)]
        for row in rows:
            outputs.append(model(image[:, :, row:row + stride]))
        """,
    "a list of a function": """
        for number, row in enumerate(starts(height, stride)):
            outputs.append(model(image[:, :, row:row + stride]))
        """,
    "an array": """
        for row in np.arange(0, height, stride):
            outputs.append(model(image[:, :, row:row + stride]))
        """,
    "filled": """
        places = []
        for y in range(0, height, stride):
            for x in range(0, width, stride):
                places.append((y, x))
        for y, x in places:
            outputs.append(model(image[:, :, y:y + stride, x:x + stride]))
        """,
    "tuples of a generator": """
        for top, bottom, left in boxes(height, width, stride):
            outputs.append(model(image[:, :, top:bottom, left:left + stride]))
        """,
    "product": """
        for y, x in itertools.product(range(0, height, stride), range(0, width, stride)):
            outputs.append(model(image[:, :, y:y + stride, x:x + stride]))
        """,
    "zip": """
        for name, y in zip(names, range(0, height, stride)):
            outputs.append(model(image[:, :, y:y + stride]))
        """,
}
FEW = {
    "literals": """
        for flipped, name in [(0, "plain"), (1, "flipped")]:
            outputs.append(model(image[:, flipped]))
        """,
    "no number": """
        for name in zip(range(3), names):
            outputs.append(model(image)[name[1]])
        """,
    "a total": """
        total = 0
        for part in image:
            total += part.sum()
            outputs.append(model(image)[:, total])
        """,
    "no model in the loop": """
        output = model(image)
        for row in starts(height, stride):
            outputs.append(output[:, :, row:row + stride])
        """,
    "tensors that are sliced on the host": """
        for row in starts(height, stride):
            outputs.append(model(image)[:, :, : len(names)])
        """,
}


def codes(body: str) -> list[str]:
    """Return what is reported of a function that predicts in windows."""
    text = AROUND.replace("BODY", textwrap.indent(textwrap.dedent(body).strip("\n"), "    "))
    return [hit.code for hit in check_source(parse(text.encode(), Path("tiles.py")), Config())]


@pytest.mark.parametrize("body", WINDOWS.values(), ids=WINDOWS)
def test_window_that_moves_is_reported(body: str) -> None:
    assert "XLA112" in codes(body)


@pytest.mark.parametrize("body", FEW.values(), ids=FEW)
def test_what_is_no_position_is_not(body: str) -> None:
    assert "XLA112" not in codes(body)
