"""Who of several processes does what: each about as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

# A share of this many times the mean is even; above it a tensor is rather read in several processes.
_EVEN = 1.05


def shares(
    groups: Sequence[Mapping[str, int]], count: int, divisible: Callable[[int], bool]
) -> dict[str, int]:
    """Item → the process that does it; the same on all of them.

    What belongs together (the parts of one array) stays with one process, so that what it is made from is
    read once; unless the shares would be uneven, and it is divisible or larger than a share.

    Args:
        groups: item → bytes, of what belongs together.
        count: of processes.
        divisible: whether the items of a group, by its position, cost no more to read apart.
    """
    sizes = [sum(group.values()) for group in groups]
    mean = sum(sizes) / count
    held = [0] * count
    dealt: dict[str, int] = {}
    for number in sorted(range(len(groups)), key=lambda at: (-sizes[at], at)):
        group = groups[number]
        fits = min(held) + sizes[number] <= _EVEN * mean
        whole = fits or (sizes[number] <= mean and not divisible(number))
        for names in [list(group)] if whole else [[name] for name in group]:
            process = held.index(min(held))
            held[process] += sum(group[name] for name in names)
            dealt |= dict.fromkeys(names, process)
    return dealt
