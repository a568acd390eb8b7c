"""The rule by which ports are counted: what is wrong in values, gradients or sizes is not proven."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import port_zoo
from benchmarks.zoo_models import proven


class Straight(nn.Module):
    """A straight-through estimator: its values do not tell whether a gradient is stopped."""

    def __init__(self, dim: int = 6, classes: int = 5) -> None:
        super().__init__()
        self.soft = nn.Linear(dim, classes)
        self.hard = nn.Linear(dim, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        soft = self.soft(x)
        return soft + (self.hard(x) - soft).detach()


def build(_: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return Straight().eval(), {"x": torch.randn(3, 6)}


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Replacements in modeling.py as it is written: pattern → text."""
    edits: dict[str, str] = {}
    write = proven.write_sources

    def wrong(made: Any, inputs: Any, place: Path) -> None:
        write(made, inputs, place)
        file = place / "modeling.py"
        text = file.read_text()
        for pattern, new in edits.items():
            assert re.search(pattern, text)
            text = re.sub(pattern, new, text)
        file.write_text(text)

    threads = torch.get_num_threads()
    monkeypatch.setattr(proven, "builder", lambda _: build)
    monkeypatch.setattr(proven, "write_sources", wrong)
    yield edits
    torch.set_num_threads(threads)


def test_a_port_that_is_right_is_proven(edited: dict[str, str]) -> None:
    row = proven.prove("a zoo", "straight")
    assert (row.status, row.reason) == ("proven", "")
    assert set(row.followed.split()) == {"dim", "classes"}
    assert not row.refused
    edited[r"jax\.lax\.stop_gradient"] = "jax.numpy.asarray"
    row = proven.prove("a zoo", "straight")
    assert row.status == "gradients"
    assert row.reason.startswith("inputs/x: ")


def test_other_values_are_no_gradients(edited: dict[str, str]) -> None:
    edited[r"jax\.lax\.stop_gradient"] = "1.0001 * jax.lax.stop_gradient"
    assert proven.prove("a zoo", "straight").status == "values"


def test_a_size_that_is_not_followed_is_refused(edited: dict[str, str]) -> None:
    edited[r"nn\.Dense\(self\.config\.classes"] = "nn.Dense(5"
    row = proven.prove("a zoo", "straight")
    assert (row.status, row.followed, row.refused) == ("proven", "dim", "classes")


def test_the_last_row_of_a_model_counts(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    for status in ("crash", "proven"):
        row = proven.Row("net", status=status, followed="dim", refused="depth", sizes="2.5")
        port_zoo.append(file, {"set": "timm", "date": "2026-11-27", **row.as_dict()})
    rows = port_zoo.read(file, "timm")
    assert rows["net"]["status"] == "proven"
    assert not port_zoo.read(file, "gallery")
    text = port_zoo.summary("timm", list(rows.values()))
    assert "proven 1 of 1 tried (100.0%)" in text
    assert "1 followed, 1 refused by name" in text
