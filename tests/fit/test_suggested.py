"""A torch model without `--inputs` is given those that it takes, as `migrate port` finds them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.fit.errors import FitError
from migrate.fit.lowered.start import lowered
from migrate.fit.lowered.step import Wanted
from tests.waiting import LIMIT

pytestmark = pytest.mark.xla

NET = """
from torch import nn




class Simple(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))


class Opaque(nn.Module):
    def forward(self, query, key, table):
        return query + key + table
"""


def wanted(folder: Path, name: str) -> Wanted:
    path = folder / "net.py"
    path.write_text(textwrap.dedent(NET))
    return Wanted(f"{path}:{name}", (), "", "auto", {}, "", 1, "")


def test_inputs_are_those_that_the_model_takes(tmp_path: Path) -> None:
    step = lowered(wanted(tmp_path, "Simple"), timeout=LIMIT)
    note = step.notes[0]
    assert note.startswith("inputs: input=float32[")
    assert "12], which the model takes; pass --inputs for those of your training" in note


def test_a_model_that_does_not_tell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FitError, match="input shapes are unknown"):
        lowered(wanted(tmp_path, "Opaque"), timeout=LIMIT)
