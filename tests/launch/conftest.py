"""One wheel for all jobs of the tests: making one takes a second."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from migrate.launch import pipeline, wheel


@pytest.fixture(scope="session")
def one_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.write_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(autouse=True)
def _copied_wheel(one_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(folder: Path) -> Path:
        return Path(shutil.copy(one_wheel, folder))

    monkeypatch.setattr(pipeline, "write_wheel", copy)
