"""What the tests of proofs share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of a script copies its working directory: here that is not all of this repository."""
    monkeypatch.chdir(tmp_path)
