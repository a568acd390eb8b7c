"""Severity of findings."""

from __future__ import annotations

from enum import StrEnum


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"  # raises, hangs, or silently trains something else
    WARNING = "warning"  # slow: compiles again and again, or the host waits at every step
    INFO = "info"  # worth knowing: runs once, or costs little

    def reaches(self, other: Severity) -> bool:
        """Whether the severity is `other` or a higher one."""
        order = list(Severity)
        return order.index(self) <= order.index(other)
