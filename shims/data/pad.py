"""Collate function that pads samples of varying length to few lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate

from shims.data.buckets import ShapeError, bucket_of, sorted_buckets

# Path of an entry in a sample: dict keys and positions, outermost first. () is the sample itself.
_Path = tuple[Any, ...]


def pad_collate(
    buckets: Sequence[int],
    *,
    keys: Sequence[Any] | None = None,
    padding_value: float | Mapping[Any, float] = 0,
    batch_size: int | None = None,
    truncate: bool = False,
) -> Collate:
    """Return a `collate_fn` that pads samples of varying length to the smallest bucket that fits.

        collate = shims.pad_collate((64, 128, 256), keys=("tokens", "labels"), batch_size=32)
        for batch, mask in DataLoader(dataset, batch_size=32, collate_fn=collate): ...

    A sample is a tensor, or tensors and other values in nested dicts, lists and tuples. Tensors of
    shape (length, …) become (batch, bucket, …), padded at the end. The padded tensors of one sample
    have the same length. Everything else is stacked as by `torch.utils.data.default_collate`. The
    function can be pickled for loader workers.

    Args:
        buckets: the lengths that batches may have.
        keys: the entries to pad: a dict key or a position in the sample, or a tuple of them for
            a nested entry. None pads every tensor that has a dimension: name the keys if some
            tensors have a fixed size.
        padding_value: the fill value, or one per entry of `keys` (missing: 0).
        batch_size: pad a short last batch to this number of rows, with a mask of False for the
            added rows. None keeps it short, which costs one more compilation on XLA.
        truncate: cut longer samples to the largest bucket instead of raising.

    Returns:
        A function from a list of samples to (batch, mask): the structure of a sample, and a bool
        tensor (batch, bucket) that is True for data.

    Raises:
        ShapeError: no or bad buckets, or a batch_size below 1. When called: a sample that is too long,
            samples of different structure, two lengths in one sample, a missing key, or no
            samples.
    """
    if batch_size is not None and batch_size < 1:
        raise ShapeError(f"batch_size={batch_size}", "give at least 1")
    paths = None if keys is None else tuple(_as_path(key) for key in keys)
    if isinstance(padding_value, Mapping):
        values = {_as_path(key): value for key, value in padding_value.items()}
        stray = [path for path in values if paths is not None and path not in paths]
        if stray:
            raise ShapeError(f"padding_value names {_show(stray[0])}", "name it in keys as well")
    else:
        values = {}
    default = 0 if isinstance(padding_value, Mapping) else padding_value
    return Collate(
        sorted_buckets(buckets), paths, tuple(values.items()), default, batch_size, truncate
    )


@dataclass(frozen=True)
class Collate:
    """Collate function returned by `pad_collate`."""

    buckets: tuple[int, ...]
    keys: tuple[_Path, ...] | None
    padding_values: tuple[tuple[_Path, float], ...]
    padding_value: float
    batch_size: int | None
    truncate: bool

    def __call__(self, samples: Sequence[Any]) -> tuple[Any, torch.Tensor]:
        """Return the batch and its mask; see `pad_collate`."""
        if not samples:
            raise ShapeError("a batch of no samples", "look at the sampler")
        rows = self.batch_size or len(samples)
        if len(samples) > rows:
            raise ShapeError(
                f"{len(samples)} samples for batch_size={rows}", "give the loader's batch size"
            )
        padded = self._padded_paths(samples[0])
        lengths = [self._length(sample, padded, n) for n, sample in enumerate(samples)]
        bucket = max(
            bucket_of(length, self.buckets, truncate=self.truncate, what=f"sample {n} of a batch")
            for n, length in enumerate(lengths)
        )
        mask = torch.zeros(rows, bucket, dtype=torch.bool)
        for row, length in enumerate(lengths):
            mask[row, :length] = True

        def stack(path: _Path, entries: list[Any]) -> Any:
            if path in padded:
                return self._pad(path, entries, rows, bucket)
            return _fill(default_collate(entries), len(entries), rows)

        return _stacked(samples, stack, ()), mask

    def _padded_paths(self, sample: Any) -> tuple[_Path, ...]:
        candidates = {
            path: entry
            for path, entry in _entries(sample)
            if isinstance(entry, torch.Tensor) and entry.dim() > 0
        }
        if self.keys is None:
            if not candidates:
                raise ShapeError("a sample holds no tensor with a length", "nothing can be padded")
            return tuple(candidates)
        for path in self.keys:
            if path not in candidates:
                raise ShapeError(
                    f"there is no tensor with a length at {_show(path)} of a sample",
                    f"the sample has {', '.join(map(_show, candidates)) or 'none'}",
                )
        return self.keys

    def _length(self, sample: Any, paths: tuple[_Path, ...], number: int) -> int:
        lengths = {}
        for path in paths:
            entry = _at(sample, path, number)
            if not isinstance(entry, torch.Tensor) or entry.dim() == 0:
                raise ShapeError(
                    f"{_show(path)} of sample {number} is not a tensor with a length",
                    "give samples of one structure",
                )
            lengths[path] = entry.shape[0]
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{_show(path)}: {length}" for path, length in lengths.items())
            raise ShapeError(
                f"sample {number} has more than one length ({listed})",
                "name in keys= those that vary together",
            )
        return next(iter(lengths.values()))

    def _pad(
        self, path: _Path, entries: list[torch.Tensor], rows: int, bucket: int
    ) -> torch.Tensor:
        first = entries[0]
        value = dict(self.padding_values).get(path, self.padding_value)
        if not first.is_floating_point() and value != int(value):
            raise ShapeError(
                f"padding_value={value} for {_show(path)}, which is {first.dtype}",
                "give a whole number",
            )
        padded = first.new_full((rows, bucket, *first.shape[1:]), value)
        for row, entry in enumerate(entries):
            if entry.shape[1:] != first.shape[1:] or entry.dtype != first.dtype:
                raise ShapeError(
                    f"{_show(path)} of sample {row} is {entry.dtype} of shape "
                    f"{tuple(entry.shape)}, of sample 0 {first.dtype} of {tuple(first.shape)}",
                    "only the first dimension may vary",
                )
            padded[row, : entry.shape[0]] = entry[:bucket]
        return padded


def _stacked(samples: Sequence[Any], stack: Callable[[_Path, list[Any]], Any], at: _Path) -> Any:
    """Return the structure of the samples, with `stack` called on the entries of each path."""
    first = samples[0]
    if isinstance(first, Mapping):
        if any(not isinstance(s, Mapping) or s.keys() != first.keys() for s in samples):
            raise ShapeError(f"the samples' keys at {_show(at)} differ", "give the same to each")
        return {key: _stacked([s[key] for s in samples], stack, (*at, key)) for key in first}
    if isinstance(first, list | tuple):
        if any(not isinstance(s, list | tuple) or len(s) != len(first) for s in samples):
            raise ShapeError(f"the samples' sizes at {_show(at)} differ", "give as many to each")
        items = [_stacked([s[n] for s in samples], stack, (*at, n)) for n in range(len(first))]
        if isinstance(first, list):
            return items
        return type(first)(*items) if hasattr(first, "_fields") else tuple(items)
    return stack(at, list(samples))


def _fill(batch: Any, present: int, rows: int) -> Any:
    """Add rows of zeros up to `rows` (None to lists, such as lists of strings)."""
    if present == rows:
        return batch
    if isinstance(batch, torch.Tensor):
        return torch.cat([batch, batch.new_zeros(rows - present, *batch.shape[1:])])
    return [*batch, *[None] * (rows - present)]


def _entries(sample: Any, at: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    if isinstance(sample, Mapping):
        for key, entry in sample.items():
            yield from _entries(entry, (*at, key))
    elif isinstance(sample, list | tuple):
        for number, entry in enumerate(sample):
            yield from _entries(entry, (*at, number))
    else:
        yield at, sample


def _at(sample: Any, path: _Path, number: int) -> Any:
    entry = sample
    for key in path:
        try:
            entry = entry[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ShapeError(
                f"sample {number} has no {_show(path)}", "give samples of one structure"
            ) from error
    return entry


def _as_path(key: Any) -> _Path:
    return key if isinstance(key, tuple) else (key,)


def _show(path: _Path) -> str:
    return "sample" + "".join(f"[{key!r}]" for key in path)
