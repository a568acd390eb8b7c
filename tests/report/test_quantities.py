"""Numbers have a unit in which they are not 0."""

from __future__ import annotations

import pytest

from migrate.report.text.quantities import shown_operations, shown_seconds


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (512, "512"), (17_660, "17.66 k"), (3_910_000, "3.91 M"), (2.5e9, "2.50 G")],
)
def test_operations(count: float, shown: str) -> None:
    assert shown_operations(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1.2, "1.20 s"),
        (6.96e-3, "6.96 ms"),
        (3.1e-6, "3.1 µs"),
        (1e-7, "0.1 µs"),
        (4.2e-8, "42 ns"),
        (1e-12, "1 ns"),
        (0.0, "0 s"),
    ],
)
def test_seconds(seconds: float, shown: str) -> None:
    assert shown_seconds(seconds) == shown
