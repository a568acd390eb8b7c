"""Distribution of work among several processes, each with about the same number of bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

# A share up to this multiple of the mean counts as even; above it, a tensor is read in several
# processes.
_EVEN = 1.05


def shares(
    groups: Sequence[Mapping[str, int]], count: int, divisible: Callable[[int], bool]
) -> dict[str, int]:
    """Return item → the process that handles it; the result is the same on all processes.

    Items of a group (the parts of one array) stay with one process, so that their source is read
    once. They are divided if the shares would be uneven and the group is divisible, or larger than
    a share.

    Args:
        groups: item → bytes, for each group of items that belong together.
        count: the number of processes.
        divisible: whether the items of the group at this position cost no more to read separately.
    """
    sizes = [sum(group.values()) for group in groups]
    mean = sum(sizes) / count
    held = [0] * count
    dealt: dict[str, int] = {}
    for number in sorted(range(len(groups)), key=lambda at: (-sizes[at], at)):
        group = groups[number]
        fits = min(held) + sizes[number] <= _EVEN * mean
        stays_together = fits or (sizes[number] <= mean and not divisible(number))
        for names in [list(group)] if stays_together else [[name] for name in group]:
            process = held.index(min(held))
            held[process] += sum(group[name] for name in names)
            dealt |= dict.fromkeys(names, process)
    return dealt
