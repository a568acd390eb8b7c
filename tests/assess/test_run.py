"""Lines of a rewritten project, as the user knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from migrate.assess.run import Ready


@pytest.mark.parametrize(
    ("files", "place", "said"),
    [
        (["a/train.py"], "train.py:12", "train.py:10"),
        (["a/train.py", "b/net.py"], "net.py:5", "net.py:3"),
        (["a/train.py", "b/train.py"], "train.py:12", "train.py"),
        (["a/train.py"], "functional.py:7", "functional.py:7"),
    ],
)
def test_places_in_graphs_are_the_lines_of_the_original(
    files: list[str], place: str, said: str
) -> None:
    def original(text: str) -> str:
        file, _, line = text.rpartition(":")
        return f"{file}:{int(line) - 2}"

    mirror: Any = None
    changed = tuple(Path("/mirror", file) for file in files)
    ready = Ready(mirror, changed[0], original, (), changed)
    assert ready.original_of_base(place) == said
