"""What the tests of `migrate fit` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fit.here import Here


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    """The process in which programs are lowered and compiled."""
    process = Here(tmp_path_factory.mktemp("fit-cache"))
    yield process
    process.close()
