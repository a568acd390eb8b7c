"""Numbers of bytes and times as people read them."""

from __future__ import annotations

from migrate.counts import scaled


def shown_bytes(count: float) -> str:
    """Return `12.3 MB`, in powers of 1000."""
    value, unit = scaled(count, 1000, ("B", "kB", "MB", "GB"))
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def shown_operations(count: float) -> str:
    """Return `3.91 M`, in powers of 1000; `512` below 1000."""
    value, unit = scaled(count, 1000, ("", "k", "M", "G", "T", "P"))
    return f"{value:.2f} {unit}" if unit else f"{value:.0f}"


def shown_share(share: float) -> str:
    """Return `12%`; nonzero shares that round to 0 are `<1%`."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def shown_seconds(seconds: float) -> str:
    """Return `1.20 s`, `6.96 ms`, `3.1 µs`, `42 ns`, or `0 s`."""
    for unit, scale, digits in (("s", 1.0, 2), ("ms", 1e-3, 2), ("µs", 1e-6, 1)):
        if seconds >= scale or (unit == "µs" and seconds >= scale / 10):
            return f"{seconds / scale:.{digits}f} {unit}"
    return f"{max(seconds / 1e-9, 1):.0f} ns" if seconds else "0 s"
