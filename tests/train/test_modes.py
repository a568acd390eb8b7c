"""Lines that set the mode of a module, by what they call and not by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from migrate.train.watch.modes import follow_modes

SOURCE = """
class Own(nn.Module):
    def train(self, mode=True):
        self.seen = True
        return super().train(mode)
class Meter:
    def train(self): ...
    eval = train
inner = nn.Sequential(nn.Linear(1, 1))
inner.eval()
Meter().eval()
models = {"a": Own()}
models["a"].train()
Meter().train()
"""


@pytest.fixture
def restored() -> Iterator[None]:
    original = nn.Module.train
    yield
    setattr(nn.Module, "train", original)  # noqa: B010


@pytest.mark.usefixtures("restored")
def test_lines_are_those_that_set_modes_of_modules() -> None:
    lines = follow_modes("script.py")
    names: dict[str, Any] = {"nn": nn, "__name__": "script"}
    exec(compile(SOURCE, "script.py", "exec"), names)
    assert sorted(lines) == [10, 13]
    assert names["models"]["a"].seen
