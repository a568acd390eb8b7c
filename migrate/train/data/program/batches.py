"""Batches in the script's order as NumPy arrays, with a position that can be saved and restored."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as PythonGenerator
from typing import Any

import numpy as np

from migrate.train.data.program.buckets import Buckets
from migrate.train.data.program.order import Indices, Order, epoch_batches

Position = dict[str, int]


class Batches:
    """Batches of all epochs, one after another.

    `position` is that of the next batch; `restore` continues from it exactly.

    Args:
        dataset: the script's dataset.
        order: order of its examples.
        batch_size: examples in a batch of one replica.
        collate_fn: the script's function; None for torch's default.
        drop_last: whether an incomplete last batch is left out.
        replicas: replicas of the script whose batches this process loads. With more than one, arrays have
            a first axis of replicas.
        workers: worker processes; 0 for this process.
        padding: padding to buckets of lengths; None for none.
        loader: "grain" or "torch": what runs the workers.
    """

    def __init__(
        self,
        dataset: Any,
        order: Order,
        batch_size: int,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        replicas: Sequence[int] = (0,),
        workers: int = 0,
        padding: Buckets | None = None,
        loader: str = "grain",
    ) -> None:
        collate = default_collate if collate_fn is None else collate_fn
        epochs = _Epochs(order, batch_size, drop_last, tuple(replicas))
        self._source = _Steps(dataset, epochs, collate, padding)
        self._load = {"grain": _by_grain, "torch": _by_torch}[loader]
        self._workers = workers
        self._running: PythonGenerator[Any, None, None] | None = None
        self._epoch = self._step = 0

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self._source.epochs.steps

    @property
    def position(self) -> Position:
        """Position of the next batch, for a checkpoint."""
        return {"epoch": self._epoch, "step": self._step}

    def restore(self, position: Position) -> None:
        """Continue at a position."""
        self.close()
        self._epoch, self._step = position["epoch"], position["step"]

    def close(self) -> None:
        """End the workers; the next batch starts them again."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def epoch(self) -> Iterator[Any]:
        """Yield the remaining batches of this epoch; then the position is the next epoch's start."""
        if self._running is None:  # workers go on from epoch to epoch
            start = self._epoch * len(self) + self._step
            self._running = self._load(self._source.since(start), self._workers)
        while self._step < len(self):
            batch = next(self._running)
            self._step += 1
            yield batch
        self._epoch, self._step = self._epoch + 1, 0

    def __iter__(self) -> Iterator[Any]:
        """Yield batches without end; an empty epoch has none."""
        while len(self):
            yield from self.epoch()


class ScriptBatches:
    """Batches of the script's own DataLoader, as NumPy arrays.

    A restored position is reached by passing over the batches before it.

    Args:
        loader: the DataLoader.
        set_epoch: called with the number of each epoch before it starts.
    """

    def __init__(self, loader: Any, set_epoch: Callable[[int], None] = lambda epoch: None) -> None:
        if getattr(loader, "num_workers", 0) and not loader.multiprocessing_context:
            loader.multiprocessing_context = _context(loader)
        self._loader, self._set_epoch = loader, set_epoch
        self._epoch = self._step = 0

    @property
    def position(self) -> Position:
        """Position of the next batch, for a checkpoint."""
        return {"epoch": self._epoch, "step": self._step}

    def restore(self, position: Position) -> None:
        """Continue at a position. Orders that depend on earlier epochs are those of a new run."""
        self._epoch, self._step = position["epoch"], position["step"]

    def epoch(self) -> Iterator[Any]:
        """Yield the remaining batches of this epoch."""
        self._set_epoch(self._epoch)
        for step, batch in enumerate(self._loader):
            if step >= self._step:
                self._step = step + 1
                yield to_numpy(batch)
        self._epoch, self._step = self._epoch + 1, 0

    def __iter__(self) -> Iterator[Any]:
        """Yield batches without end."""
        while True:
            yield from self.epoch()


class _Epochs:
    """Indices of each step, counted over all epochs."""

    def __init__(
        self, order: Order, batch_size: int, drop_last: bool, replicas: tuple[int, ...]
    ) -> None:
        self._order, self._batch_size = order, batch_size
        self._drop_last, self._replicas = drop_last, replicas
        self._known: tuple[int, list[list[Indices]]] = (0, self._made(0))
        self.steps = len(self._known[1])

    def __getitem__(self, step: int) -> list[Indices]:
        epoch, within = divmod(step, self.steps)
        known, batches = self._known
        if known != epoch:
            batches = self._made(epoch)
            self._known = (epoch, batches)
        return batches[within]

    def _made(self, epoch: int) -> list[list[Indices]]:
        return epoch_batches(
            self._order,
            epoch,
            self._batch_size,
            drop_last=self._drop_last,
            replicas=self._replicas,
        )


class _Steps:
    """Batches by the number of their step: what workers read."""

    def __init__(
        self,
        dataset: Any,
        epochs: _Epochs,
        collate: Callable[[list[Any]], Any],
        padding: Buckets | None,
        start: int = 0,
    ) -> None:
        self._dataset, self.epochs = dataset, epochs
        self._collate, self._padding, self._start = collate, padding, start

    def since(self, start: int) -> _Steps:
        """Return the batches from a step on."""
        return _Steps(self._dataset, self.epochs, self._collate, self._padding, start)

    def __len__(self) -> int:
        return 2**31 - 1 if self.epochs.steps else 0  # all epochs

    def __getitem__(self, step: Any) -> Any:
        indices = self.epochs[self._start + int(step)]
        replicas = [self._batch(members) for members in indices]
        return replicas[0] if len(replicas) == 1 else _stacked(replicas)

    def _batch(self, indices: Indices) -> Any:
        batch = to_numpy(self._collate([self._dataset[int(index)] for index in indices]))
        return batch if self._padding is None else self._padding.pad(batch)


def _by_grain(source: _Steps, workers: int) -> PythonGenerator[Any, None, None]:
    import grain  # type: ignore[import-not-found, unused-ignore]

    dataset = grain.MapDataset.source(source).to_iter_dataset(
        grain.ReadOptions(num_threads=0 if workers else 1, prefetch_buffer_size=2)
    )
    if workers:
        from absl import flags

        if not flags.FLAGS.is_parsed():  # grain's workers read them
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    iterator = iter(dataset)
    try:
        yield from iterator
    finally:
        if workers:
            iterator.close()


def _by_torch(source: _Steps, workers: int) -> PythonGenerator[Any, None, None]:
    from torch.utils.data import DataLoader

    yield from DataLoader(
        source,
        batch_size=None,
        num_workers=workers,
        collate_fn=_unchanged,
        multiprocessing_context=_context(source) if workers else None,
    )


def _context(source: Any) -> str | None:
    """Return how workers are started: by a fresh process, as JAX's threads do not survive a fork.

    What cannot be pickled (a lambda as a transform) reaches workers by a fork only.
    """
    try:
        pickle.Pickler(_Nowhere()).dump(source)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return "forkserver"


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


def _unchanged(batch: Any) -> Any:
    return batch


def to_numpy(value: Any) -> Any:
    """Return nested data with NumPy arrays for torch's tensors."""
    if isinstance(value, Mapping):
        return {key: to_numpy(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(to_numpy, value))
    if isinstance(value, list | tuple):
        return type(value)(map(to_numpy, value))
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            import ml_dtypes

            return tensor.float().numpy().astype(ml_dtypes.bfloat16)
        return tensor.numpy()
    return value


def default_collate(examples: list[Any]) -> Any:
    """Return a batch as torch's `default_collate` makes it, of NumPy arrays.

    Raises:
        TypeError: examples are of a type that it does not stack.
    """
    first = examples[0]
    if isinstance(first, str | bytes):
        return examples
    if isinstance(first, Mapping):
        return {key: default_collate([example[key] for example in examples]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(default_collate, map(list, zip(*examples, strict=True))))
    if isinstance(first, list | tuple):
        columns = zip(*examples, strict=True)
        return [default_collate(list(column)) for column in columns]
    arrays = [to_numpy(example) for example in examples]
    if isinstance(first, bool | int | float | np.generic) or isinstance(arrays[0], np.ndarray):
        return np.stack([np.asarray(array) for array in arrays])
    raise TypeError(f"a batch of {type(first).__name__} is unknown: pass collate_fn")


def _stacked(replicas: list[Any]) -> Any:
    """Return the batches of several replicas with a first axis of replicas."""
    first = replicas[0]
    if isinstance(first, Mapping):
        return {key: _stacked([batch[key] for batch in replicas]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(_stacked, map(list, zip(*replicas, strict=True))))
    if isinstance(first, list | tuple):
        return type(first)(_stacked(list(items)) for items in zip(*replicas, strict=True))
    if not isinstance(first, np.ndarray):
        return replicas
    shapes = {array.shape for array in replicas}
    if len(shapes) > 1:
        raise ValueError(
            f"replicas have batches of different shapes, {sorted(shapes)}: pad them to one length"
        )
    return np.stack(replicas)
