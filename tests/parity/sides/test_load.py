"""What a user names as a side, and is no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.parity.ground.errors import TargetError
from migrate.parity.sides.load import load_runner
from migrate.parity.sides.target import Target


def test_a_file_without_a_name_in_it(tmp_path: Path) -> None:
    for name, part in (
        ("net.safetensors", "is a file, and no model"),
        ("net.py", "net.py:factory"),
    ):
        (tmp_path / name).write_bytes(b"x")
        spec = str(tmp_path / name)
        with pytest.raises(TargetError, match=part):
            load_runner(Target("", spec, spec))
