from __future__ import annotations

import pickle
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from shims.data import ShapeError, pad_collate

Pair = namedtuple("Pair", "x y")


def tokens(length: int) -> torch.Tensor:
    return torch.arange(1, length + 1)


@pytest.mark.parametrize(
    ("lengths", "bucket"), [((1,), 4), ((4, 2), 4), ((4, 5), 8), ((8, 1), 8), ((0, 3), 4)]
)
def test_the_smallest_bucket_that_fits(lengths: tuple[int, ...], bucket: int) -> None:
    batch, mask = pad_collate((8, 4))([tokens(length) for length in lengths])
    assert batch.shape == mask.shape == (len(lengths), bucket)
    assert mask.sum(1).tolist() == list(lengths)
    for row, length in enumerate(lengths):
        assert batch[row].tolist() == [*range(1, length + 1), *[0] * (bucket - length)]
        assert mask[row].tolist() == [True] * length + [False] * (bucket - length)


def test_nested_samples_with_entries_of_fixed_size() -> None:
    def sample(length: int) -> dict[str, Any]:
        return {
            "ids": tokens(length),
            "pair": Pair(torch.ones(length, 3), [torch.ones(5), length / 2]),
            "name": f"s{length}",
        }

    collate = pickle.loads(
        pickle.dumps(
            pad_collate(
                (4, 8),
                keys=("ids", ("pair", 0)),
                padding_value={"ids": -100, ("pair", 0): 0.5},
                batch_size=3,
            )
        )
    )
    batch, mask = collate([sample(3), sample(6)])
    assert batch["ids"].tolist()[0] == [1, 2, 3, *[-100] * 5]
    assert batch["ids"].tolist()[2] == [-100] * 8
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].x.shape == (3, 8, 3)
    assert batch["pair"].x[0].sum() == 3 * 3 + 5 * 3 * 0.5
    assert batch["pair"].y[0].shape == (3, 5)
    assert batch["pair"].y[1].tolist() == [1.5, 3.0, 0.0]
    assert batch["name"] == ["s3", "s6", None]
    assert mask.sum(1).tolist() == [3, 6, 0]


def test_too_long_is_an_error_or_cut() -> None:
    with pytest.raises(ShapeError, match="sample 1 of a batch has length 9, the largest bucket is"):
        pad_collate((4, 8))([tokens(2), tokens(9)])
    batch, mask = pad_collate((4, 8), truncate=True)([tokens(2), tokens(9)])
    assert batch[1].tolist() == list(range(1, 9))
    assert mask[1].all()


@pytest.mark.parametrize(
    ("options", "samples", "message"),
    [
        ({}, [], "no samples"),
        ({}, [1, 2], "no tensor with a length"),
        ({}, [(tokens(3), tokens(2))], r"sample 0 has more than one length \(sample\[0\]: 3"),
        ({"keys": ["y"]}, [{"x": tokens(3)}], r"no tensor with a length at sample\['y'\]"),
        ({}, [{"x": tokens(3)}, {"y": tokens(3)}], r"sample 1 has no sample\['x'\]"),
        ({"keys": ["x"]}, [{"x": tokens(1)}, {"x": tokens(1), "y": 1}], "keys at sample differ"),
        ({}, [torch.ones(2, 3), torch.ones(2, 4)], r"sample 1 is torch.float32 of shape \(2, 4\)"),
        ({}, [torch.ones(2), tokens(2)], "sample 1 is torch.int64"),
        ({"padding_value": 0.5}, [tokens(2)], "padding_value=0.5 for sample, which is torch.int64"),
        ({"batch_size": 1}, [tokens(2), tokens(2)], "2 samples for batch_size=1"),
    ],
)
def test_what_cannot_be_padded_is_named(
    options: dict[str, Any], samples: list[Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        pad_collate((4,), **options)(samples)


@pytest.mark.parametrize(
    "options",
    [
        {"buckets": ()},
        {"buckets": (0,)},
        {"buckets": (4,), "batch_size": 0},
        {"buckets": (4,), "keys": ["x"], "padding_value": {"y": 1}},
    ],
)
def test_bad_options_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        pad_collate(**options)


# JAX, which other tests have imported into this process by now, warns of every fork in it; the child
# here does not use it.
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
def test_in_a_loader_with_a_worker() -> None:
    samples = [tokens(length) for length in (1, 5, 3, 2, 7)]
    loader = DataLoader(
        samples,  # type: ignore[arg-type]
        batch_size=2,
        num_workers=1,
        collate_fn=pad_collate((8,), batch_size=2),
    )
    batches = list(loader)
    assert [tuple(batch.shape) for batch, _ in batches] == [(2, 8)] * 3
    assert sum(int(mask.sum()) for _, mask in batches) == 18
