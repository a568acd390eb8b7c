"""Numbers of bytes and times as people read them."""

from __future__ import annotations

from migrate.counts import scaled


def shown_bytes(count: float) -> str:
    """Return `12.3 MB`, in powers of 1000."""
    value, unit = scaled(count, 1000, ("B", "kB", "MB", "GB"))
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def shown_share(share: float) -> str:
    """Return `12%`; nonzero shares that round to 0 are `<1%`."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def shown_seconds(seconds: float) -> str:
    """Return `1.20 s`, `6.96 ms` or `3.1 µs`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds / 1e-6:.1f} µs"
