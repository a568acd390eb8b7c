"""A collate function that pads samples of varying length to few lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate

from shims.data.buckets import ShapeError, bucket_of, sorted_buckets

# Where an entry lies in a sample: dict keys and positions, outermost first; () is the sample.
_Place = tuple[Any, ...]


def pad_collate(
    buckets: Sequence[int],
    *,
    keys: Sequence[Any] | None = None,
    padding_value: float | Mapping[Any, float] = 0,
    batch_size: int | None = None,
    truncate: bool = False,
) -> Collate:
    """A `collate_fn` that pads samples of varying length to the smallest bucket that fits.

        collate = shims.pad_collate((64, 128, 256), keys=("tokens", "labels"), batch_size=32)
        for batch, mask in DataLoader(dataset, batch_size=32, collate_fn=collate): ...

    A sample is a tensor, or tensors and other values in nested dicts, lists and tuples. Tensors of
    shape (length, …) become (batch, bucket, …), padded behind; the padded tensors of one sample
    have one length. Everything else is stacked as `torch.utils.data.default_collate` does. The
    function can be pickled, for loader workers.

    Args:
        buckets: the lengths that batches may have.
        keys: what to pad: a dict key or a position in the sample, or a tuple of them that leads to
            a nested entry. None pads every tensor that has a dimension: name the keys where some
            have a fixed size.
        padding_value: what is put behind, or one for each entry of `keys` (missing: 0).
        batch_size: pad a short last batch to this many rows with rows of padding, whose mask is
            False everywhere. None leaves it short, which on XLA is one more compilation.
        truncate: cut what is longer than the largest bucket instead of raising.

    Returns:
        A function from a list of samples to (batch, mask): the structure of a sample, and a bool
        tensor (batch, bucket) that is True where there is data.

    Raises:
        ShapeError: no or bad buckets, or a batch_size below 1. When called: too long a sample,
            samples of different structure, two lengths in one sample, a key that is not there, or
            no samples.
    """
    if batch_size is not None and batch_size < 1:
        raise ShapeError(f"batch_size={batch_size}", "give at least 1")
    places = None if keys is None else tuple(_as_place(key) for key in keys)
    if isinstance(padding_value, Mapping):
        values = {_as_place(key): value for key, value in padding_value.items()}
        stray = [place for place in values if places is not None and place not in places]
        if stray:
            raise ShapeError(f"padding_value names {_show(stray[0])}", "name it in keys as well")
    else:
        values = {}
    default = 0 if isinstance(padding_value, Mapping) else padding_value
    return Collate(
        sorted_buckets(buckets), places, tuple(values.items()), default, batch_size, truncate
    )


@dataclass(frozen=True)
class Collate:
    """The function that `pad_collate` makes."""

    buckets: tuple[int, ...]
    keys: tuple[_Place, ...] | None
    padding_values: tuple[tuple[_Place, float], ...]
    padding_value: float
    batch_size: int | None
    truncate: bool

    def __call__(self, samples: Sequence[Any]) -> tuple[Any, torch.Tensor]:
        """Make the batch and its mask; see `pad_collate`."""
        if not samples:
            raise ShapeError("a batch of no samples", "look at the sampler")
        rows = self.batch_size or len(samples)
        if len(samples) > rows:
            raise ShapeError(
                f"{len(samples)} samples for batch_size={rows}", "give the loader's batch size"
            )
        padded = self._padded_places(samples[0])
        lengths = [self._length(sample, padded, n) for n, sample in enumerate(samples)]
        bucket = max(
            bucket_of(length, self.buckets, truncate=self.truncate, what=f"sample {n} of a batch")
            for n, length in enumerate(lengths)
        )
        mask = torch.zeros(rows, bucket, dtype=torch.bool)
        for row, length in enumerate(lengths):
            mask[row, :length] = True

        def stack(place: _Place, entries: list[Any]) -> Any:
            if place in padded:
                return self._pad(place, entries, rows, bucket)
            return _fill(default_collate(entries), len(entries), rows)

        return _stacked(samples, stack, ()), mask

    def _padded_places(self, sample: Any) -> tuple[_Place, ...]:
        found = {
            place: entry
            for place, entry in _entries(sample)
            if isinstance(entry, torch.Tensor) and entry.dim() > 0
        }
        if self.keys is None:
            if not found:
                raise ShapeError("a sample holds no tensor with a length", "nothing can be padded")
            return tuple(found)
        for place in self.keys:
            if place not in found:
                raise ShapeError(
                    f"there is no tensor with a length at {_show(place)} of a sample",
                    f"the sample has {', '.join(map(_show, found)) or 'none'}",
                )
        return self.keys

    def _length(self, sample: Any, places: tuple[_Place, ...], number: int) -> int:
        lengths = {}
        for place in places:
            entry = _at(sample, place, number)
            if not isinstance(entry, torch.Tensor) or entry.dim() == 0:
                raise ShapeError(
                    f"{_show(place)} of sample {number} is not a tensor with a length",
                    "give samples of one structure",
                )
            lengths[place] = entry.shape[0]
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{_show(place)}: {length}" for place, length in lengths.items())
            raise ShapeError(
                f"sample {number} has more than one length ({listed})",
                "name in keys= those that vary together",
            )
        return next(iter(lengths.values()))

    def _pad(
        self, place: _Place, entries: list[torch.Tensor], rows: int, bucket: int
    ) -> torch.Tensor:
        first = entries[0]
        value = dict(self.padding_values).get(place, self.padding_value)
        if not first.is_floating_point() and value != int(value):
            raise ShapeError(
                f"padding_value={value} for {_show(place)}, which is {first.dtype}",
                "give a whole number",
            )
        padded = first.new_full((rows, bucket, *first.shape[1:]), value)
        for row, entry in enumerate(entries):
            if entry.shape[1:] != first.shape[1:] or entry.dtype != first.dtype:
                raise ShapeError(
                    f"{_show(place)} of sample {row} is {entry.dtype} of shape "
                    f"{tuple(entry.shape)}, of sample 0 {first.dtype} of {tuple(first.shape)}",
                    "only the first dimension may vary",
                )
            padded[row, : entry.shape[0]] = entry[:bucket]
        return padded


def _stacked(samples: Sequence[Any], stack: Callable[[_Place, list[Any]], Any], at: _Place) -> Any:
    """The structure of the samples, with `stack` called on the entries of each place."""
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
    """Add rows of zeros (None to lists, as of strings) up to `rows`."""
    if present == rows:
        return batch
    if isinstance(batch, torch.Tensor):
        return torch.cat([batch, batch.new_zeros(rows - present, *batch.shape[1:])])
    return [*batch, *[None] * (rows - present)]


def _entries(sample: Any, at: _Place = ()) -> Iterator[tuple[_Place, Any]]:
    if isinstance(sample, Mapping):
        for key, entry in sample.items():
            yield from _entries(entry, (*at, key))
    elif isinstance(sample, list | tuple):
        for number, entry in enumerate(sample):
            yield from _entries(entry, (*at, number))
    else:
        yield at, sample


def _at(sample: Any, place: _Place, number: int) -> Any:
    entry = sample
    for key in place:
        try:
            entry = entry[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ShapeError(
                f"sample {number} has no {_show(place)}", "give samples of one structure"
            ) from error
    return entry


def _as_place(key: Any) -> _Place:
    return key if isinstance(key, tuple) else (key,)


def _show(place: _Place) -> str:
    return "sample" + "".join(f"[{key!r}]" for key in place)
