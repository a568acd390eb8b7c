from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.browser import Browser, browser


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A tab of one Chromium for all tests of pages."""
    with browser(tmp_path_factory.mktemp("profile")) as tab:
        yield tab
