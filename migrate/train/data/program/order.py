"""Order of examples as torch's samplers give it, in NumPy.

Torch's CPU generator is the Mersenne Twister, seeded with the lower 32 bits; `randperm` is a Fisher-Yates
shuffle by its 32-bit numbers (`aten/src/ATen/native/TensorFactories.cpp`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Indices = np.ndarray[Any, Any]
# From this size on torch draws 64 bits for each example.
_MOST = 2**32 // 20


class Generator:
    """Torch's CPU generator after `manual_seed(seed)`."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed & 0xFFFFFFFF)

    def draw(self, count: int) -> Indices:
        """Return raw 32-bit numbers, as int64."""
        numbers: Indices = self._state.randint(0, 2**32, count, np.uint32)
        return numbers.astype(np.int64)

    def skip(self, count: int) -> None:
        """Leave out numbers."""
        while count > 0:
            count -= len(self.draw(min(count, 1 << 20)))


def randperm(size: int, generator: Generator) -> Indices:
    """Return `torch.randperm(size, generator=generator)`.

    Raises:
        ValueError: torch draws otherwise for as many examples.
    """
    if size >= _MOST:
        raise ValueError(f"{size} examples: torch shuffles {_MOST} or more by other numbers")
    order = list(range(size))
    steps = np.arange(max(size - 1, 0))
    targets = (steps + generator.draw(len(steps)) % (size - steps)).tolist()
    for position, target in enumerate(targets):
        order[position], order[target] = order[target], order[position]
    return np.array(order, np.int64)


@dataclass(frozen=True)
class Sequential:
    """Order of `SequentialSampler`."""

    size: int

    def indices(self, epoch: int, replica: int = 0) -> Indices:
        """Return the examples of an epoch."""
        del epoch, replica
        return np.arange(self.size)


@dataclass(frozen=True)
class Shuffled:
    """Order of `RandomSampler` without a generator, as `DataLoader(shuffle=True)` makes it.

    Attributes:
        size: number of examples.
        seeds: seed of each epoch, which torch drew from its default generator. Later epochs, which were not
            recorded, count on from the last one.
        samples: number of examples in an epoch; None for all.
        replacement: whether examples are drawn with replacement.
    """

    size: int
    seeds: tuple[int, ...]
    samples: int | None = None
    replacement: bool = False

    def indices(self, epoch: int, replica: int = 0) -> Indices:
        """Return the examples of an epoch."""
        del replica
        last = len(self.seeds) - 1
        seed = self.seeds[min(epoch, last)] + max(epoch - last, 0)
        return _sampled(self.size, self.samples, self.replacement, Generator(seed))


@dataclass(frozen=True)
class SharedGenerator:
    """Order of `RandomSampler` with a generator of the script, which goes on from epoch to epoch.

    Attributes:
        size: number of examples.
        seed: seed of the generator.
        loader_draws: whether the DataLoader has the generator too: it draws 64 bits before each epoch.
        samples: number of examples in an epoch; None for all.
        replacement: whether examples are drawn with replacement.
    """

    size: int
    seed: int
    loader_draws: bool = True
    samples: int | None = None
    replacement: bool = False

    def indices(self, epoch: int, replica: int = 0) -> Indices:
        """Return the examples of an epoch, all epochs before it being complete."""
        del replica
        generator = Generator(self.seed)
        samples = self.size if self.samples is None else self.samples
        # torch also shuffles for the rest of an epoch that has none
        used = samples if self.replacement else (samples // self.size + 1) * (self.size - 1)
        before = 2 if self.loader_draws else 0
        generator.skip(epoch * (before + used) + before)
        return _sampled(self.size, self.samples, self.replacement, generator)


@dataclass(frozen=True)
class Distributed:
    """Order of `DistributedSampler`, for each replica.

    Attributes:
        size: number of examples.
        replicas: number of replicas.
        shuffle: whether it shuffles.
        seed: its seed; the epoch is added.
        drop_last: whether examples are left out instead of repeated so that replicas have equally many.
        fixed_epoch: epoch of all epochs, where the script never calls `set_epoch`; None where it does.
    """

    size: int
    replicas: int
    shuffle: bool = True
    seed: int = 0
    drop_last: bool = False
    fixed_epoch: int | None = None

    def indices(self, epoch: int, replica: int = 0) -> Indices:
        """Return the examples of a replica in an epoch."""
        epoch = epoch if self.fixed_epoch is None else self.fixed_epoch
        order = np.arange(self.size)
        if self.shuffle:
            order = randperm(self.size, Generator(self.seed + epoch))
        if self.drop_last and self.size % self.replicas:
            each = math.ceil((self.size - self.replicas) / self.replicas)
        else:
            each = math.ceil(self.size / self.replicas)
        total = each * self.replicas
        repeated = np.tile(order, math.ceil(total / max(self.size, 1)))
        result: Indices = repeated[replica : total : self.replicas]
        return result


Order = Sequential | Shuffled | SharedGenerator | Distributed


def batched(indices: Indices, batch_size: int, *, drop_last: bool = False) -> list[Indices]:
    """Return the batches of `BatchSampler`."""
    end = len(indices) // batch_size * batch_size if drop_last else len(indices)
    return [indices[start : start + batch_size] for start in range(0, end, batch_size)]


def epoch_batches(
    order: Order,
    epoch: int,
    batch_size: int,
    *,
    drop_last: bool = False,
    replicas: Sequence[int] = (0,),
) -> list[list[Indices]]:
    """Return the batches of an epoch, and in each the examples of every replica."""
    each = [
        batched(order.indices(epoch, replica), batch_size, drop_last=drop_last)
        for replica in replicas
    ]
    return [list(batches) for batches in zip(*each, strict=True)]


def _sampled(size: int, samples: int | None, replacement: bool, generator: Generator) -> Indices:
    """Return the examples of one pass of `RandomSampler`."""
    count = size if samples is None else samples
    if replacement:
        return generator.draw(count) % size
    passes = [randperm(size, generator) for _ in range(count // size)]
    rest = count % size
    if rest:
        passes.append(randperm(size, generator)[:rest])
    return np.concatenate(passes) if passes else np.zeros(0, np.int64)
