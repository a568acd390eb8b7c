from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader

from shims.data import BucketSampler, ShapeError, pad_collate, shapes_of
from shims.data.buckets import bucket_of


@pytest.mark.parametrize("case", range(150))
def test_every_replica_gets_the_same_shapes_and_no_sample_twice(case: int) -> None:
    draw = random.Random(case)
    buckets = tuple(sorted(draw.sample(range(1, 40), draw.randint(1, 4))))
    lengths = [draw.randint(0, buckets[-1]) for _ in range(draw.randint(0, 120))]
    batch_size, replicas = draw.randint(1, 7), draw.randint(1, 5)
    drop_last, shuffle = draw.random() < 0.5, draw.random() < 0.8
    samplers = [
        BucketSampler(
            lengths,
            batch_size,
            buckets,
            shuffle=shuffle,
            seed=case,
            drop_last=drop_last,
            num_replicas=replicas,
            rank=rank,
        )
        for rank in range(replicas)
    ]
    orders = []
    for epoch in (0, 3):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        plans = [list(sampler) for sampler in samplers]
        assert {len(plan) for plan in plans} == {len(samplers[0])}
        shapes = []
        for plan in plans:
            in_bucket = [
                {bucket_of(lengths[n], buckets, truncate=False, what="") for n in batch}
                for batch in plan
            ]
            assert all(len(found) == 1 for found in in_bucket)
            shapes.append(
                [(*found, len(batch)) for found, batch in zip(in_bucket, plan, strict=True)]
            )
        assert all(shape == shapes[0] for shape in shapes)
        used = Counter(n for plan in plans for batch in plan for n in batch)
        assert set(used.values()) <= {1}
        members = Counter(bucket_of(n, buckets, truncate=False, what="") for n in lengths)
        left_out = len(lengths) - len(used)
        spare = batch_size * replicas - 1 if drop_last else replicas - 1
        assert left_out <= spare * len(members)
        if drop_last:
            assert {size for _, size in shapes[0]} <= {batch_size}
        assert plans == [list(sampler) for sampler in samplers]
        orders.append(plans)
    if shuffle and len(lengths) > 100 and batch_size < 4:
        assert orders[0] != orders[1]
    if not shuffle:
        assert orders[0] == orders[1]


def test_a_loader_of_few_shapes() -> None:
    draw = random.Random(0)
    samples = [torch.ones(draw.randint(1, 64)) for _ in range(300)]
    lengths = [len(sample) for sample in samples]
    varying = shapes_of(
        DataLoader(
            samples,  # type: ignore[arg-type]
            batch_size=10,
            collate_fn=lambda batch: torch.nn.utils.rnn.pad_sequence(batch, batch_first=True),
        )
    )
    assert varying.distinct > 8
    sampler = BucketSampler(lengths, 10, (16, 32, 64), drop_last=False)
    for batch_size, distinct in ((None, 6), (10, 3)):
        report = shapes_of(
            DataLoader(
                samples,  # type: ignore[arg-type]
                batch_sampler=sampler,
                collate_fn=pad_collate((16, 32, 64), batch_size=batch_size),
            )
        )
        assert report.distinct == distinct
        assert report.batches == len(sampler) == sum(count.batches for count in report.shapes)


def test_the_report_says_how_often_and_from_where() -> None:
    batches = [{"x": torch.ones(2, 3), "y": [1]}, {"x": torch.ones(2, 4), "y": [2]}] * 2
    report = shapes_of(batches, batches=3)
    assert [(count.batches, count.first_batch) for count in report.shapes] == [(2, 0), (1, 1)]
    assert str(report).splitlines() == [
        "2 distinct shapes in 3 batches",
        "  2 × from batch 0: ['x'] float32[2, 3]",
        "  1 × from batch 1: ['x'] float32[2, 4]",
    ]
    assert shapes_of([]).distinct == 0


def test_lengths_that_fit_no_bucket() -> None:
    with pytest.raises(ShapeError, match="sample 1 of the dataset has length 9"):
        BucketSampler([1, 9], 1, (4,))
    sampler = BucketSampler(torch.tensor([1, 9]), 1, (4,), truncate=True, shuffle=False)
    assert list(sampler) == [[0], [1]]
    for bad in ({"batch_size": 0}, {"batch_size": 1, "rank": 2, "num_replicas": 2}):
        with pytest.raises(ShapeError):
            BucketSampler([1], buckets=(4,), **bad)  # type: ignore[arg-type]
