"""Record of the DataLoader of a torch run: plain values, which can be pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Order = Literal["sequential", "random", "distributed", "subset", "other"]


@dataclass(frozen=True)
class RecordedSampler:
    """Sampler of a DataLoader.

    Attributes:
        order: its kind: SequentialSampler, RandomSampler, DistributedSampler, SubsetRandomSampler, or
            another class (custom, weighted; an IterableDataset has none).
        name: qualified name of its class.
        size: number of examples of the dataset; None for an IterableDataset.
        shuffle: whether it shuffles.
        replacement: whether RandomSampler draws with replacement.
        samples: `num_samples` of RandomSampler; None for the dataset's size.
        seed: `DistributedSampler.seed`.
        drop_last: `DistributedSampler.drop_last`.
        replicas: number of its replicas.
        epochs: epoch of each recorded iteration, as the script's `set_epoch` left it.
    """

    order: Order
    name: str
    size: int | None
    shuffle: bool = False
    replacement: bool = False
    samples: int | None = None
    seed: int = 0
    drop_last: bool = False
    replicas: int = 1
    epochs: tuple[int, ...] = ()


@dataclass(frozen=True)
class RecordedLoader:
    """DataLoader of a run.

    Attributes:
        sampler: its sampler.
        batch_size: examples in a batch; None if batching is off or the script has a batch sampler.
        drop_last: whether an incomplete last batch is left out.
        workers: number of worker processes.
        iterable: whether its dataset is an IterableDataset.
        batch_sampler: qualified name of a batch sampler that is not torch's; "" for torch's.
        shared_generator: seed of the script's own generator that DataLoader and sampler share, or that
            the sampler alone was given; None without one.
        loader_has_generator: whether DataLoader itself was given that generator. It draws from it once in
            every epoch, before the sampler.
        seeds: seed that RandomSampler drew from the default generator at the start of each recorded epoch.
        collate: qualified name of a `collate_fn` that is not torch's default; "" for the default.
        drawn: whether the script's own generator has been drawn from before the first epoch.
        file: the script, as messages name it.
        line: line of the DataLoader's construction.
    """

    sampler: RecordedSampler
    batch_size: int | None
    drop_last: bool = False
    workers: int = 0
    iterable: bool = False
    batch_sampler: str = ""
    shared_generator: int | None = None
    loader_has_generator: bool = False
    seeds: tuple[int, ...] = ()
    collate: str = ""
    drawn: bool = False
    file: str = "train.py"
    line: int = 0

    @property
    def at(self) -> str:
        """Position for a message."""
        return f"{self.file}:{self.line}" if self.line else self.file
