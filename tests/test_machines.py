"""The rows of `make test-machines` name tests that there are."""

from __future__ import annotations

import pytest

from tests.machines import ROOT, ROWS


@pytest.mark.parametrize("name", ROWS)
def test_the_tests_of_a_row_are_there(name: str) -> None:
    for path in ROWS[name].tests:
        assert (ROOT / path.removeprefix("--ignore=")).exists(), path
