"""Batches whose samples share a bucket, in the same order of buckets on every replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from shims._shared import world
from shims.data.buckets import ShapeError, bucket_of, sorted_buckets


class BucketSampler(Sampler[list[int]]):
    """A `batch_sampler` whose batches each contain samples of one length bucket.

        sampler = shims.BucketSampler(lengths, batch_size=32, buckets=(64, 128, 256))
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=pad_collate((64, 128, 256)))
        for epoch in range(epochs):
            sampler.set_epoch(epoch)

    At each step, every replica gets a batch of the same bucket and with the same number of samples,
    so all replicas run the same graph. On a TPU, replicas with different graphs wait for each other
    forever. This requires the same `lengths`, seed and epoch on all replicas. No sample is used
    twice in an epoch.

    Args:
        lengths: the length of each sample of the dataset, in its order.
        batch_size: samples per batch and replica.
        buckets: the lengths to pad to, as in `pad_collate`.
        shuffle: draw the order from seed and epoch; False keeps the order within each bucket and
            uses the buckets in ascending order.
        seed: the seed of the order; the same on every replica.
        drop_last: omit, in each bucket, the samples that do not fill a batch on every replica.
            False gives a short last batch in each bucket, of equal size on all replicas, and
            omits at most `num_replicas - 1` samples of a bucket. Pad it to full size with
            `pad_collate(batch_size=…)`: each short size is one more compilation.
        truncate: put longer samples in the largest bucket; `pad_collate` then cuts them.
        num_replicas: the number of replicas; None to ask torch.distributed or torch_xla.
        rank: this replica's rank; None likewise.

    Raises:
        ShapeError: a length exceeds all buckets, or a number is out of range.
    """

    def __init__(
        self,
        lengths: Sequence[int] | torch.Tensor,
        batch_size: int,
        buckets: Sequence[int],
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        truncate: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        here, size = world.rank_and_size()
        self.num_replicas = size if num_replicas is None else num_replicas
        self.rank = here if rank is None else rank
        if batch_size < 1 or not 0 <= self.rank < self.num_replicas:
            raise ShapeError(
                f"batch_size={batch_size}, rank={self.rank}, num_replicas={self.num_replicas}",
                "give a batch size of at least 1 and a rank below the number of replicas",
            )
        self.batch_size = batch_size
        self.buckets = sorted_buckets(buckets)
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self._members: dict[int, list[int]] = {bucket: [] for bucket in self.buckets}
        for index, length in enumerate(lengths):
            bucket = bucket_of(
                int(length), self.buckets, truncate=truncate, what=f"sample {index} of the dataset"
            )
            self._members[bucket].append(index)

    def set_epoch(self, epoch: int) -> None:
        """Change the order for the next epoch. Call it on every replica before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of this replica, which is the same on every replica."""
        return sum(len(self._sizes(len(members))) for members in self._members.values())

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of each batch of this replica."""
        # Every replica computes the complete plan and takes its part of each step.
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        steps: list[list[int]] = []
        for members in self._members.values():
            order = self._drawn(members, generator)
            start = 0
            for size in self._sizes(len(order)):
                steps.append(order[start : start + size * self.num_replicas])
                start += size * self.num_replicas
        for number in self._drawn(list(range(len(steps))), generator):
            yield steps[number][self.rank :: self.num_replicas]

    def _sizes(self, members: int) -> list[int]:
        """Return the sizes of one replica's batches of a bucket."""
        full, rest = divmod(members, self.batch_size * self.num_replicas)
        sizes = [self.batch_size] * full
        short = rest // self.num_replicas
        return sizes if self.drop_last or short == 0 else [*sizes, short]

    def _drawn(self, items: list[int], generator: torch.Generator) -> list[int]:
        if not self.shuffle:
            return items
        return [items[n] for n in torch.randperm(len(items), generator=generator).tolist()]
